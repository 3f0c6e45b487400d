"""A reduced VGG-9 is the same model and learns the same, with fewer weights."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.models.ensemble import Ensemble
from fl.models.registry import build_classifier
from fl.seeding import seeded
from fl.training.optimizers import SGD, Adam, Proximal
from fl.training.recipe import Step, minimise
from fl.training.reduced import Reduced
from tests.fl.toy import same_bits

NUMBERS = {
    (8, 8): (1, 1),
    (8, 28): (3, 5),
    (16, 16): (4, 9),
    (28, 28): (9, 25),
    (30, 17): (6, 15),
    (32, 32): (16, 49),
    (56, 56): (49, 49),
}
"""Of 49, by the images' sides: for SGD and answers, and for Adam."""
OPTIMIZERS = [SGD(0.05), SGD(0.05, momentum=0.9), Adam(1e-3), Proximal(SGD(0.05, 0.9), mu=0.5)]


def vgg9(sides: tuple[int, int]) -> nn.Module:
    """With distinct weights, in double precision and without dropout."""
    with seeded(0, "test"):
        return build_classifier("vgg9", (1, *sides), 3, width=0.05).double().eval()


def images(sides: tuple[int, int], count: int = 4) -> Tensor:
    draws = torch.Generator().manual_seed(count)
    return torch.rand(count, 1, *sides, generator=draws, dtype=torch.float64)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("optimizer", [None, SGD(0.1), Adam(0.1)], ids=str)
@pytest.mark.parametrize("sides", NUMBERS)
def test_it_gives_the_same_logits(sides: tuple[int, int], optimizer: SGD | Adam | None) -> None:
    model = vgg9(sides)
    before, logits = state(model), model(images(sides))
    with Reduced(model, optimizer):
        torch.testing.assert_close(model(images(sides)), logits)
        columns = len(model.get_parameter("classifier.1.weight")[0])
        kept = NUMBERS[sides][isinstance(optimizer, Adam)]
        assert columns / before["classifier.1.weight"].shape[1] == kept / 49
    assert same_bits(state(model), before)
    torch.testing.assert_close(model(images(sides)), logits, rtol=0, atol=0)


def trained(
    model: nn.Module, optimizer: SGD | Adam | Proximal, *, reduce: bool
) -> dict[str, Tensor]:
    """The model's state after five steps."""
    sides = model.map_shape
    assert isinstance(sides, tuple)
    batches = [images((8 * sides[0], 8 * sides[1]), count) for count in (4, 3, 7, 1, 2)]
    with Reduced(model, optimizer, when=reduce) as own:
        parameters = list(model.parameters())
        steps = (Step(F.cross_entropy(model(x), torch.arange(len(x)) % 3)) for x in batches)
        minimise(steps, [parameters], optimizer.for_cohort([parameters]), own.scale_gradients)
        assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    return state(model)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("sides", [(8, 8), (24, 24)])
def test_it_learns_the_same(sides: tuple[int, int], optimizer: SGD | Adam | Proximal) -> None:
    start = vgg9(sides)
    plain = trained(copy.deepcopy(start), optimizer, reduce=False)
    own = trained(copy.deepcopy(start), optimizer, reduce=True)
    moved = (plain["classifier.1.weight"] - state(start)["classifier.1.weight"]).abs().max()
    assert moved > 1e-4
    for name, value in plain.items():
        torch.testing.assert_close(own[name], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adam(0.1)], ids=str)
def test_what_was_saved_meanwhile_is_gone_on_from_to_the_bit(optimizer: SGD | Adam) -> None:
    model = vgg9((24, 24))
    own = Reduced(model, optimizer)
    with torch.no_grad():
        model.get_parameter("classifier.1.weight").mul_(1.7)
    whole, weights = own.whole(), [weight.clone() for weight in own.weights]
    again = vgg9((24, 24))
    other = Reduced(again, optimizer)
    other.load(whole, weights)
    assert same_bits(state(again), state(model))
    own.undo()
    other.undo()
    assert same_bits(state(again), state(model))
    assert same_bits(state(model), whole)


@pytest.mark.parametrize("optimizer", [SGD(0.1, weight_decay=0.1), Adam(0.1, weight_decay=0.1)])
def test_under_weight_decay_nothing_is_reduced(optimizer: SGD | Adam) -> None:
    assert Reduced(vgg9((8, 8)), optimizer).weights == []


def test_each_member_of_an_ensemble_is_reduced_and_other_models_are_left_as_they_are() -> None:
    members = [vgg9((8, 8)), build_classifier("cnn", (1, 8, 8), 3, width=0.1).double().eval()]
    ensemble = Ensemble(members).double()
    before, logits = state(ensemble), ensemble(images((8, 8)))
    with Reduced(ensemble) as own:
        assert len(own.weights) == 1
        assert own.whole().keys() == before.keys()
        torch.testing.assert_close(ensemble(images((8, 8))), logits)
    assert same_bits(state(ensemble), before)
