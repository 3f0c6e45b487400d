"""What ranks exchange in a step: gradients, or the factors of which they would be the product."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cost import parameters
from torch import Tensor, nn

from fl.federation import Batch
from fl.fusion.gradients import Gradients
from fl.fusion.group import Group
from fl.server import Loss
from tests.fl.fusion.networks import LOSS, data, two_passes, vgg9
from tests.fl.fusion.threads import on_ranks

ROWS = 12


class Recording(Group):
    """A rank of two whose peer has no samples; notes how many numbers were summed."""

    size = 2

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def sum(self, tensor: Tensor) -> None:
        self.numbers.append(tensor.numel())


def layers(*, bias: bool = True) -> nn.Module:
    """A layer whose weights outnumber a batch's rows of factors, and one whose do not."""
    torch.manual_seed(0)
    wide, narrow = nn.Linear(784, 60, bias=bias), nn.Linear(60, 10, bias=bias)
    return nn.Sequential(nn.Flatten(), wide, nn.Tanh(), narrow).double()


def batch() -> Batch:
    return {name: column[:ROWS] for name, column in data().items()}


def step(model: nn.Module, loss: Loss, group: Group, rows: slice, size: int = ROWS) -> Tensor:
    """One rank's part in a step; the loss over all ranks. Leaves gradients on the model."""
    gradients = Gradients(model, loss, size, group)
    with gradients.watching():
        gradients.start_step(rows.start, rows.stop - rows.start)
        own = torch.zeros((), dtype=torch.float64)
        if rows.stop > rows.start:
            part = {name: column[rows] for name, column in batch().items()}
            own = loss(model, part) * (rows.stop - rows.start) / ROWS
            own.backward()
        return gradients.sum(own.detach())


def exchanged(model: nn.Module, loss: Loss, size: int = ROWS) -> int:
    """Numbers that one step sums over the ranks, beside the loss."""
    group = Recording()
    step(model.double(), loss, group, slice(0, 4), size)
    (numbers,) = group.numbers
    return numbers - 1


@pytest.mark.parametrize("loss", [LOSS, two_passes], ids=["factors", "gradients"])
@pytest.mark.parametrize(("ranks", "bias"), [(1, True), (2, False), (15, True)])
def test_every_rank_gets_the_gradients_of_the_whole_batch(
    ranks: int, loss: Loss, bias: bool
) -> None:
    """With fifteen ranks some have no sample of the batch's twelve."""
    plain = layers(bias=bias)
    expected = loss(plain, batch())
    expected.backward()
    models = [layers(bias=bias) for _ in range(ranks)]
    cuts = torch.arange(ROWS).tensor_split(ranks)
    ends = [0, *torch.tensor([len(cut) for cut in cuts]).cumsum(0).tolist()]

    def work(group: Group) -> float:
        rows = slice(ends[group.rank], ends[group.rank + 1])
        return step(models[group.rank], loss, group, rows).item()

    assert on_ranks(ranks, work) == pytest.approx([expected.item()] * ranks, rel=1e-12)
    for model in models:
        for own, whole in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad, whole.grad, rtol=1e-10, atol=1e-12)


def test_a_step_leaves_nothing_behind_for_a_next_one_with_fewer_rows() -> None:
    """As in an epoch's last batch: rows and gradients of the step before count no more."""
    model, plain = layers(), layers()
    parts = [{n: column[rows] for n, column in batch().items()} for rows in (slice(ROWS), slice(3))]
    gradients = Gradients(model, LOSS, ROWS, Recording())
    with gradients.watching():
        for part in parts:
            model.zero_grad()
            gradients.start_step(0, len(part["labels"]))
            own = LOSS(model, part)
            own.backward()
            gradients.sum(own.detach())
    LOSS(plain, parts[1]).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


def test_factors_are_exchanged_where_they_are_fewer_than_the_gradients() -> None:
    """A row of 784 and one of 60 for each sample, beside a bias and the narrow layer."""
    model = layers()
    rest = parameters(model) - 784 * 60
    assert exchanged(model, LOSS) == ROWS * (784 + 60) + rest
    assert exchanged(layers(), LOSS, size=10_000) == parameters(model)


def test_a_loss_that_promises_no_single_pass_exchanges_gradients_as_they_are() -> None:
    assert exchanged(layers(), two_passes) == parameters(layers())


def test_for_vgg9_it_is_several_times_less() -> None:
    assert 3 * exchanged(vgg9(), LOSS) < parameters(vgg9())


def test_what_is_frozen_is_neither_exchanged_nor_given_a_gradient() -> None:
    model = layers()
    model[1].requires_grad_(False)  # type: ignore[index]
    assert exchanged(model, LOSS) == parameters(model[3])  # type: ignore[index]
    assert all(p.grad is None for p in model[1].parameters())  # type: ignore[index]


class Twice:
    """Breaks its promise."""

    one_pass = True

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch["images"]) + model(batch["images"])).square().mean()


class HalfTheRows:
    """Passes fewer rows than the batch has."""

    one_pass = True

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["images"][::2]).square().mean()


@pytest.mark.parametrize("loss", [Twice(), HalfTheRows()], ids=["twice", "half the rows"])
def test_a_loss_that_breaks_its_promise_of_one_pass_is_found_out(loss: Any) -> None:
    with pytest.raises(ValueError, match="one_pass must call the model once, with a row for each"):
        step(layers(), loss, Recording(), slice(0, 4))


def test_a_model_under_watch_can_be_asked_and_is_a_plain_one_afterwards() -> None:
    model, twin = layers(), layers()
    images = batch()["images"]
    gradients = Gradients(model, LOSS, ROWS, Recording())
    with gradients.watching():
        gradients.start_step(0, 4)
        for _ in range(2):  # as often and with as many rows as one likes
            with torch.no_grad():
                assert torch.equal(model(images), twin(images))
            assert torch.equal(model.eval()(images), twin(images))
            model.train()
    for one in (model, twin):
        F.cross_entropy(one(images) + one(images), batch()["labels"]).backward()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(own.grad, other.grad)
