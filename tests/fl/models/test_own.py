"""Models of the user's own: what a factory is given, and what is refused."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.inputs import Inputs
from fl.models.common import ModelInfo
from fl.models.own import check_output
from fl.models.registry import CLASSIFIERS, build_classifier, check_classifier, register_model
from tests.registries import registries_restored


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with registries_restored():
        yield


class Net(nn.Module):
    def __init__(self, num_classes: int, image_shape: tuple[int, ...] = (1, 4, 4), deep: int = 1):
        super().__init__()
        self.layer = nn.Linear(int(torch.Size(image_shape).numel()), num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1))


def fixed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))


@pytest.mark.parametrize(
    "make", [Net, lambda num_classes, image_shape: Net(num_classes, image_shape)]
)
def test_a_class_or_function_gets_what_it_names(make: Callable[..., nn.Module]) -> None:
    register_model("mine", make)
    assert "mine" in CLASSIFIERS
    model = build_classifier("mine", (3, 2, 2), 5, width=0.5)
    assert model(torch.rand(7, 3, 2, 2)).shape == (7, 5)


def test_a_function_without_parameters_makes_what_it_makes() -> None:
    register_model("mine", fixed)
    check_classifier("mine", (3, 2, 2), 5)
    with pytest.raises(UserError, match=r"gives \(2, 5\) .* expected \(2, 6\): a logit for each"):
        check_classifier("mine", (3, 2, 2), 6)
    with pytest.raises(UserError, match=r"model mine fails on images of shape \(2, 1, 4, 4\)"):
        check_classifier("mine", (1, 4, 4), 5)


def needs_more(num_classes: int, depth: int) -> nn.Module:
    return fixed()


def with_units(num_classes: int, width: int = 64) -> nn.Module:
    return fixed()


def with_width(num_classes: int, width: float) -> nn.Module:
    return fixed()


@pytest.mark.parametrize(
    ("name", "make", "line"),
    [
        ("vgg9", Net, "model vgg9 comes with Onefold; give yours another name"),
        ("a model", Net, "allowed: letters, digits"),
        ("mine", fixed(), "expected the class or a function"),
        ("mine", "Net", "expected a torch.nn.Module class or a function that makes one, got str"),
        ("mine", needs_more, "needs depth, but Onefold passes only shape, image_shape, num"),
        ("mine", with_units, "width has the default 64, but a run sets it to classifier.width"),
        ("mine", partial(with_width, width=2), "width has the default 2, but a run sets it to"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(name: str, make: Any, line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        register_model(name, make)
    assert "\n" not in str(caught.value)


def test_what_makes_no_module_is_refused_when_it_is_built() -> None:
    register_model("mine", lambda: 3)
    with pytest.raises(UserError, match=r"expected a torch\.nn\.Module of .* got int"):
        check_classifier("mine", (1, 4, 4), 3)


def test_trying_a_model_draws_nothing_from_the_global_stream() -> None:
    """A process that tries it first and one that does not start from the same weights."""

    def make() -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))

    register_model("mine", make)
    torch.manual_seed(3)
    plain = make()
    for _ in range(2):  # tried the first time alone
        torch.manual_seed(3)
        model = build_classifier("mine", (1, 4, 4), 3)
        assert torch.equal(model[2].weight, plain[2].weight)  # type: ignore[index]


def test_a_model_is_tried_once_and_another_of_the_same_name_again() -> None:
    made: list[int] = []

    def counted(num_classes: int) -> nn.Module:
        made.append(num_classes)
        return Net(num_classes)

    register_model("mine", counted)
    for _ in range(3):
        check_classifier("mine", (1, 4, 4), 3)
    assert made == [3, 3]  # two, which must not share weights
    register_model("mine", lambda: nn.Flatten())
    with pytest.raises(UserError, match="a logit for each class"):
        check_classifier("mine", (1, 4, 4), 3)


def test_a_function_that_gives_the_same_weights_again_is_refused() -> None:
    """In one process clients and server would train and average one model in turns."""
    whole, part, norm = fixed(), nn.Linear(12, 8), nn.BatchNorm1d(12, affine=False)
    shares = {
        "1.weight": lambda: whole,
        "1.bias": lambda: nn.Sequential(nn.Flatten(), _biased(part.bias), nn.Linear(8, 5)),
        "1.running_mean": lambda: nn.Sequential(nn.Flatten(), norm, nn.Linear(12, 5)),
    }
    for name, make in shares.items():
        register_model("mine", make)
        with pytest.raises(
            UserError, match=f"two calls returned models that share {name}: create all"
        ):
            check_classifier("mine", (3, 2, 2), 5)


def _biased(bias: nn.Parameter) -> nn.Module:
    layer = nn.Linear(12, 8)
    layer.bias = bias
    return layer


def test_layers_that_no_training_changes_may_be_shared() -> None:
    frozen = nn.Linear(12, 8).requires_grad_(False)
    frozen.register_buffer("scale", torch.ones(3))
    register_model("mine", lambda: nn.Sequential(nn.Flatten(), frozen, nn.Linear(8, 5)))
    check_classifier("mine", (3, 2, 2), 5)
    register_model("mine", lambda: copy.deepcopy(nn.Sequential(nn.Flatten(), nn.Linear(12, 5))))
    check_classifier("mine", (3, 2, 2), 5)


def info(model: nn.Module) -> ModelInfo:
    def build(*_: object) -> nn.Module:
        return copy.deepcopy(model)

    return ModelInfo("mine", "classifier", build, lambda shape: True, "no more", "x")


def test_logits_pass_and_anything_else_is_named() -> None:
    check_output(info(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))), Inputs((1, 2, 2)), 3, 1.0)
    for model, line in (
        (nn.Flatten(), r"gives \(2, 4\) for images of shape \(2, 1, 2, 2\), expected \(2, 3\)"),
        (nn.LSTM(2, 3), "fails on images"),
        (nn.Sequential(nn.Flatten(), nn.LSTM(4, 3)), "gives tuple for images"),
    ):
        with pytest.raises(UserError, match=line):
            check_output(info(model), Inputs((1, 2, 2)), 3, 1.0)
