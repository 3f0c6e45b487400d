"""M1 and M2: FedD2S's sizes, layer by layer."""

import pytest
import torch
from cost import parameters
from torch import nn

from fl.errors import UserError
from fl.models import build_classifier
from fl.models.architectures.lenet import LeNet

GRAY, COLOR = (1, 28, 28), (3, 32, 32)
both = pytest.mark.parametrize("name", ["m1", "m2"])


def layers(model: nn.Module) -> list[nn.Module]:
    """Those with weights, in their order."""
    return [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "sizes"),
    [
        ("m1", COLOR, 10, [224, 1168, 4640, 16_416, 528, 170]),
        ("m1", GRAY, 10, [80, 1168, 4640, 9248, 528, 170]),
        ("m2", GRAY, 62, [160, 9280, 73_856, 147_584, 4128, 2046]),
        ("m2", COLOR, 100, [448, 9280, 73_856, 262_272, 4128, 3300]),
    ],
)
def test_parameters_of_each_layer(
    name: str, shape: tuple[int, int, int], classes: int, sizes: list[int]
) -> None:
    with torch.device("meta"):
        model = build_classifier(name, shape, classes)
    assert [parameters(layer) for layer in layers(model)] == sizes
    assert parameters(model) == sum(sizes)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "size"),
    [
        ("m1", COLOR, 10, 23_146),
        ("m1", GRAY, 10, 15_834),
        ("m2", GRAY, 62, 237_054),
        ("m2", COLOR, 100, 353_284),
    ],
)
def test_parameters_in_all(name: str, shape: tuple[int, int, int], classes: int, size: int) -> None:
    with torch.device("meta"):
        assert parameters(build_classifier(name, shape, classes)) == size


def test_what_each_layer_of_m1_passes_on() -> None:
    """After its activation and pooling, where it has them."""
    model, passed = build_classifier("m1", COLOR, 10), []
    assert isinstance(model, LeNet)
    x = torch.rand(2, *COLOR)
    for layer in (*model.features, nn.Flatten(), *model.classifier):
        x = layer(x)
        if isinstance(layer, nn.MaxPool2d | nn.Linear):
            passed.append(x[0].numel())
    assert passed == [2048, 1024, 512, 32, 16, 10]


@both
def test_every_layer_but_the_last_has_an_activation(name: str) -> None:
    model = build_classifier(name, GRAY, 10)
    kinds = [type(m) for m in model.modules() if not list(m.children())]
    block = [nn.Conv2d, nn.ReLU, nn.MaxPool2d]
    assert kinds == [*block * 3, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


@both
def test_logits_are_the_classifiers_of_flat_features(name: str) -> None:
    torch.manual_seed(0)
    model, images = build_classifier(name, COLOR, 10), torch.rand(4, *COLOR)
    assert isinstance(model, LeNet)
    logits = model(images)
    assert logits.shape == (4, 10)
    assert (logits < 0).any()
    assert torch.equal(logits, model.classifier(model.features(images).flatten(1)))


@both
def test_images_of_any_side_from_eight_on_are_answered(name: str) -> None:
    for shape in ((1, 8, 8), (1, 33, 45), (3, 8, 23)):
        model = build_classifier(name, shape, 7, width=0.2)
        assert model(torch.rand(2, *shape)).shape == (2, 7)
    with pytest.raises(UserError, match=rf"{name} does not take .* sides of at least 8"):
        build_classifier(name, (1, 7, 28), 10)


def test_width_scales_channels_and_hidden_units() -> None:
    half, least = (build_classifier("m1", COLOR, 10, width=w) for w in (0.5, 0.001))
    assert [len(layer.weight) for layer in layers(half)] == [4, 8, 16, 16, 8, 10]  # type: ignore[arg-type]
    assert [len(layer.weight) for layer in layers(least)] == [1, 1, 1, 1, 1, 10]  # type: ignore[arg-type]


@both
def test_an_image_is_answered_alike_in_any_company(name: str) -> None:
    """So that clients train as one."""
    torch.manual_seed(0)
    model, images = build_classifier(name, GRAY, 10), torch.rand(5, *GRAY)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model.train()(images), alone)


@both
def test_every_weight_learns(name: str) -> None:
    torch.manual_seed(0)
    model = build_classifier(name, GRAY, 10)
    model(torch.rand(8, *GRAY)).square().sum().backward()
    for weight, parameter in model.named_parameters():
        assert parameter.grad is not None, weight
        assert parameter.grad.any(), weight
