"""A model's layers in their order, in the model itself and in a cohort of its clients."""

import pytest
import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.models.common import state_sent
from fl.models.layered import Layers
from fl.models.registry import build_classifier
from fl.training.stacked import Turns, cohort_model

GRAY, COLOR = (1, 28, 28), (3, 32, 32)
NAMES = {
    ("m1", COLOR): "C1 C2 C3 F1 F2 F3",
    ("m2", GRAY): "C1 C2 C3 F1 F2 F3",
    ("cnn", GRAY): "C1 C2 F1",
    ("cnn", COLOR): "C1 C2 C3 C4 F1",
    ("convnet", GRAY): "C1 C2 C3 F1",
    ("vgg9", COLOR): "C1 C2 C3 C4 F1 F2 F3",
}
every_model = pytest.mark.parametrize(("name", "shape"), NAMES)


def built(name: str, shape: tuple[int, int, int], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build_classifier(name, shape, 10, width=0.2)


def images(shape: tuple[int, int, int], rows: int = 4, seed: int = 9) -> Tensor:
    return torch.rand(rows, *shape, generator=torch.Generator().manual_seed(seed))


@every_model
def test_layers_are_named_and_counted(name: str, shape: tuple[int, int, int]) -> None:
    layers = Layers(built(name, shape))
    assert layers.names == tuple(NAMES[name, shape].split())
    assert len(layers) == len(layers.names)
    assert layers.flattening == layers.names.index("F1")


@every_model
def test_front_and_head_are_the_model_wherever_it_is_cut(
    name: str, shape: tuple[int, int, int]
) -> None:
    for model in (built(name, shape).eval(), built(name, shape).train()):
        layers = Layers(model)
        for depth in range(len(layers) + 1):
            torch.manual_seed(0)  # of dropout
            whole = model(images(shape))
            torch.manual_seed(0)
            front = layers.forward(model, images(shape), 1, depth)
            assert torch.equal(layers.forward(model, front, depth + 1, len(layers)), whole)
        assert layers.state_names(4, 2) == (), "none between"


@every_model
def test_layers_share_out_the_state(name: str, shape: tuple[int, int, int]) -> None:
    """What is sent of it, in its order, with the running statistics of BatchNorm."""
    model = built(name, shape)
    layers, everything = Layers(model), tuple(state_sent(model))
    assert layers.state_names(1, len(layers)) == everything
    for depth in range(len(layers) + 1):
        front, head = layers.state_names(1, depth), layers.state_names(depth + 1, len(layers))
        assert front + head == everything
    assert all(layers.state_names(n, n) for n in range(1, len(layers) + 1))


@every_model
def test_layers_share_out_the_parameters(name: str, shape: tuple[int, int, int]) -> None:
    model, other = built(name, shape), built(name, shape, seed=1)
    layers = Layers(model)
    for depth in range(len(layers) + 1):
        front = layers.parameters(other, 1, depth)
        head = layers.parameters(other, depth + 1, len(layers))
        assert [id(p) for p in front + head] == [id(p) for p in other.parameters()]
        named = dict(other.named_parameters())
        names = [n for n in layers.state_names(1, depth) if n in named]
        assert [id(p) for p in front] == [id(named[n]) for n in names]


def test_frozen_weights_are_not_trained_with_their_layer() -> None:
    """Weight decay would move them."""
    model = built("m1", COLOR)
    *rest, last = model.parameters()
    last.requires_grad_(False)
    found = Layers(model).parameters(model, 1, 6)
    assert [id(p) for p in found] == [id(p) for p in rest]


def test_a_layer_has_what_follows_it_up_to_the_next() -> None:
    layers = Layers(built("convnet", GRAY))
    norm = ("weight", "bias", "running_mean", "running_var")
    expected = ("features.4.weight", "features.4.bias", *(f"features.5.{n}" for n in norm))
    assert layers.state_names(2, 2) == expected
    assert layers.state_names(4, 4) == ("classifier.weight", "classifier.bias")


def test_what_m1_passes_on_is_what_the_paper_sends() -> None:
    """FedD2S's sizes: a layer's output is that after activation and pooling."""
    model = build_classifier("m1", COLOR, 10)
    layers, x, passed = Layers(model), images(COLOR), []
    for number in range(1, 7):
        x = layers.forward(model, x, number, number)
        passed.append(tuple(x.shape[1:]))
    assert passed == [(8, 16, 16), (16, 8, 8), (32, 4, 4), (32,), (16,), (10,)]
    assert (layers.forward(model, images(COLOR), 1, 5) >= 0).all()


@pytest.mark.parametrize("name", ["m1", "convnet"])
def test_a_cohort_gives_each_client_its_own_answers(name: str) -> None:
    """Its model has other modules, under the names that were found in a plain one."""
    models = [built(name, GRAY, seed).eval() for seed in (0, 1)]
    parts = [images(GRAY, rows, seed=rows) for rows in (3, 5)]
    turns, layers = Turns(), Layers(models[0])
    cohort = cohort_model(models, turns).eval()
    turns.clients, turns.rows = (0, 1), (3, 5)
    for depth in range(len(layers) + 1):
        front = layers.forward(cohort, torch.cat(parts), 1, depth)
        answers = layers.forward(cohort, front, depth + 1, len(layers)).split(turns.rows)
        for model, part, found in zip(models, parts, answers, strict=True):
            torch.testing.assert_close(found, model(part), rtol=1e-4, atol=1e-6)
    assert torch.equal(torch.cat(answers), cohort(torch.cat(parts)))


def test_a_cohorts_head_trains_each_clients_own() -> None:
    models, alone = ([built("m1", GRAY, seed) for seed in (0, 1)] for _ in range(2))
    features = [torch.rand(rows, 6, 3, 3) for rows in (3, 5)]
    turns, layers = Turns(), Layers(models[0])
    cohort = cohort_model(models, turns)
    turns.clients, turns.rows = (0, 1), (3, 5)
    layers.forward(cohort, torch.cat(features), 4, 6).square().sum().backward()
    for model, twin, own in zip(models, alone, features, strict=True):
        layers.forward(twin, own, 4, 6).square().sum().backward()
        pairs = zip(layers.parameters(model, 4, 6), layers.parameters(twin, 4, 6), strict=True)
        for found, expected in pairs:
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6)
        assert all(p.grad is None for p in layers.parameters(model, 1, 3))
    assert layers.parameters(cohort, 1, 6) == []


class Sequence(nn.Module):
    """A stranger's model of these parts."""

    def __init__(self, features: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features, self.classifier = features, classifier

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


def test_an_activation_that_stands_twice_runs_twice() -> None:
    relu = nn.ReLU()
    features = nn.Sequential(nn.Conv2d(1, 3, 3), relu, nn.Conv2d(3, 2, 3), relu)
    model = Sequence(features, nn.Sequential(nn.Linear(32, 5), relu, nn.Linear(5, 3)))
    layers, x = Layers(model), torch.rand(4, 1, 8, 8)
    assert layers.names == ("C1", "C2", "F1", "F2")
    assert torch.equal(layers.forward(model, x, 1, 4), model(x))


@pytest.mark.parametrize(
    "model",
    [
        Sequence(nn.Conv2d(1, 2, 3), nn.Linear(2, 2)),
        Sequence(nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3))), nn.Linear(2, 2)),
        Sequence(nn.Sequential(nn.Conv2d(1, 2, 3)), nn.Identity()),
        Sequence(nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 2, 3)), nn.Linear(2, 2)),
        nn.Linear(2, 2),
    ],
    ids=["no sequence", "nested", "no linear layer", "a norm first", "no features"],
)
def test_modules_that_do_not_follow_one_another_are_refused(model: nn.Module) -> None:
    with pytest.raises(UserError, match=rf"m1, m2, cnn, .* got {type(model).__name__}$"):
        Layers(model)


@pytest.mark.parametrize(
    ("name", "kind"), [("resnet18", "ResNet18"), ("efficientnet-v2", "EfficientNet")]
)
def test_models_with_branches_are_refused_by_name(name: str, kind: str) -> None:
    with torch.device("meta"):
        model = build_classifier(name, COLOR, 10, width=0.1)
    with pytest.raises(UserError, match=rf"as of m1, m2, cnn, convnet and vgg9; got {kind}"):
        Layers(model)


def test_a_number_is_checked() -> None:
    layers = Layers(built("m1", GRAY))
    for number in range(7):
        layers.check(number, "shared_layers")
    layers.check(1, "fixed_layer", least=1)
    for number in (-1, 7, 9):
        with pytest.raises(UserError) as error:
            layers.check(number, "shared_layers")
        expected = f"shared_layers must be in 0 to 6 (C1, C2, C3, F1, F2, F3), got {number}"
        assert str(error.value) == expected
    with pytest.raises(UserError, match=r"fixed_layer must be in 1 to 6 .*, got 0"):
        layers.check(0, "fixed_layer", least=1)


def test_a_name_is_checked() -> None:
    layers = Layers(built("cnn", GRAY))
    for name in ("C1", "C2", "F1"):
        layers.check_name(name, "dropping.layers")
    with pytest.raises(UserError) as error:
        layers.check_name("C3", "dropping.layers")
    assert str(error.value) == "dropping.layers names no layer 'C3'; valid: C1, C2, F1"


def test_many_rows_go_through_in_parts_frozen_and_in_their_order() -> None:
    model = build_classifier("m1", (1, 28, 28), 10)
    layers, images = Layers(model), torch.rand(11, 1, 28, 28)
    found = layers.outputs(model, images, 1, 4, batch_size=4)
    torch.testing.assert_close(found, layers.forward(model, images, 1, 4).detach())
    assert not found.requires_grad
