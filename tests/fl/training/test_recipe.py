"""A client's recipe: its loop, its losses, its patience, and training it alone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fl.federation import Batch, Training
from fl.training.optimizers import SGD
from fl.training.recipe import (
    MeanLoss,
    Recipe,
    Step,
    batches,
    minimise,
    one_by_one,
)
from fl.training.steps import POINTS, StepLosses
from tests.fl.toy import CLASSIFIER, GENERATOR, VGG, shard, task_input
from tests.fl.training.cohorts import assert_close, inputs, recipe_for
from tests.fl.training.plain import train_plainly

ALONE = task_input(CLASSIFIER, shard(1, 0, 0))


class Point(nn.Module):
    """A model that is one number, from 0 on."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(1))


def distances(model: nn.Module, batch: Batch) -> Tensor:
    """Half the square of how far each sample is: the gradient is the distance."""
    assert isinstance(model, Point)
    return (model.at - batch["x"]).square() / 2


def recipe(epochs: Sequence[Sequence[Sequence[float]]], **changes: object) -> Recipe:
    """A point that samples draw to them, epoch by epoch and batch by batch."""
    model = Point()

    def epoch(samples: Sequence[Sequence[float]]) -> Iterator[Batch]:
        yield from ({"x": torch.tensor(batch)} for batch in samples)

    made = Recipe(
        model=model,
        losses=distances,
        optimizer=SGD(0.5),
        epochs=map(epoch, epochs),
        upload=lambda: {"at": model.at.detach().clone()},
    )
    return replace(made, **changes)


@pytest.mark.parametrize(
    "training",
    [replace(VGG, epochs=3), replace(VGG, epochs=3, optimizer="adam", lr=2e-3), GENERATOR],
    ids=["sgd", "adam", "generator"],
)
def test_one_by_one_is_the_plain_way(training: Training) -> None:
    """With dropout too, whose masks come from the client's own stream."""
    own = inputs(training, 20, 3)
    assert_close(one_by_one(own, recipe_for(own)), train_plainly(own, recipe_for(own)))


def test_each_batch_moves_the_model_by_its_mean_loss_or_by_the_sum() -> None:
    samples = [[[8.0, 4.0], [4.0]]]
    mean = one_by_one(ALONE, recipe(samples))
    assert mean.tensors["at"].item() == 3.5  # half the way to 6, then half the way to 4
    total = one_by_one(ALONE, recipe(samples, reduction="sum"))
    assert total.tensors["at"].item() == 5.0  # all the way to 6, then half the way to 4


def test_the_training_loss_is_the_mean_over_the_last_epochs_samples_as_they_were_met() -> None:
    output = one_by_one(ALONE, recipe([[[100.0]], [[50.0, 52.0], [51.5]]]))
    # At 50 two samples are met, at distances of 0 and 2; then at 50.5 one, at a distance of 1.
    assert output.stats == {"train_loss": pytest.approx((0 + 2 + 0.5) / 3), "epochs": 2}
    assert output.losses == [5000, 0.83333]  # of each epoch, to five digits


@pytest.mark.parametrize(
    ("means", "patience", "epochs"),
    [
        ([3, 2, 1, 0.5], 1, 4),
        ([3, 2, 2, 1], 1, 3),  # as low as before is no lower
        ([3, 4, 2, 5, 5, 1], 2, 5),
        ([3, 4, 5, 6], 9, 4),
        ([3, 4, 5, 6], None, 4),
        ([math.nan, math.nan, 1], 2, 2),
    ],
)
def test_a_client_stops_when_patience_epochs_have_not_lowered_its_loss(
    means: list[float], patience: int | None, epochs: int
) -> None:
    mean_loss = MeanLoss(recipe([], patience=patience))
    for played, mean in enumerate(means, start=1):
        mean_loss.begin_epoch()
        mean_loss.add(torch.tensor([mean, mean]))
        if mean_loss.end_epoch():
            assert played == epochs
            break
    assert mean_loss.epochs == epochs
    assert mean_loss.output().losses == pytest.approx(means[:epochs], nan_ok=True)


def test_a_client_without_a_sample_has_no_loss() -> None:
    mean_loss = MeanLoss(recipe([]))
    mean_loss.end_epoch()
    output = mean_loss.output()
    assert (output.stats, output.losses) == ({"train_loss": 0, "epochs": 1}, [])


def test_batches_come_epoch_by_epoch_and_end_where_patience_does() -> None:
    given = recipe([[[1.0], [2.0]], [[3.0]], [[4.0]], [[5.0]]], patience=2)
    taken, mean_loss = [], MeanLoss(given)
    for batch in batches(given, mean_loss):
        taken.append(batch["x"].item())
        mean_loss.add(torch.tensor([1.0]))
    assert taken == [1, 2, 3, 4]


def test_noise_in_the_model_is_the_clients_own_and_the_rounds() -> None:
    class Noisy(Point):
        def forward(self) -> Tensor:
            return self.at + torch.rand(1)

    def noisy(client: int = 0, round: int = 1) -> float:
        model = Noisy()
        own = recipe([[[0.0]]], model=model, losses=lambda m, batch: m() + batch["x"])
        given = replace(ALONE, client=replace(ALONE.client, id=client), round=round)
        return one_by_one(given, own).stats["train_loss"]

    first, before = noisy(), torch.random.get_rng_state()
    torch.rand(3)
    assert noisy() == first
    assert len({first, noisy(client=1), noisy(round=2)}) == 3
    torch.random.set_rng_state(before)
    noisy()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_each_loss_is_computed_with_the_weights_that_the_step_before_left() -> None:
    weight = torch.tensor([4.0], requires_grad=True)
    seen = []

    def steps() -> Iterator[Step]:
        for _ in range(3):
            seen.append(weight.item())
            yield Step(weight.square().sum())

    minimise(steps(), [[weight]], SGD(0.25).for_cohort([[weight]]))
    assert seen == [4.0, 2.0, 1.0]
    assert weight.item() == 0.5


def test_only_the_named_clients_move_and_no_gradient_is_left_from_the_step_before() -> None:
    weights = [torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)]
    parameters = [[weight] for weight in weights]
    steps = (Step((weights[k] * 1.0).sum(), [k]) for k in (0, 0, 1))
    minimise(steps, parameters, SGD(0.25).for_cohort(parameters))
    assert [weight.item() for weight in weights] == [0.5, 0.75]


def test_gradients_are_adjusted_before_the_step_also_those_of_a_loss_of_no_parameter() -> None:
    """A rank without a sample of its own still takes the step that all take."""
    weight, found = torch.zeros(1, requires_grad=True), list[float | None]()

    def summed_over_ranks() -> None:
        own = weight.grad
        found.append(None if own is None else own.item())
        weight.grad = torch.ones(1) if own is None else own / 2

    steps = [Step((3 * weight).sum()), Step(torch.zeros(()))]
    minimise(steps, [[weight]], SGD(1.0).for_cohort([[weight]]), summed_over_ranks)
    assert found == [3.0, None]
    assert weight.item() == -2.5


@pytest.mark.parametrize(
    ("losses", "curve"),
    [
        ([3.0, 2.0, 1.234567], [3.0, 2.0, 1.2346]),  # a point for each step
        (range(4 * POINTS), [4 * k + 1.5 for k in range(POINTS)]),  # or for an equal part of them
        ([], []),
        ([1.0, math.inf], []),
    ],
    ids=["few", "many", "none", "infinite"],
)
def test_the_losses_of_steps_are_a_curve_of_few_points(
    losses: Sequence[float], curve: list[float]
) -> None:
    found = StepLosses()
    for loss in losses:
        found.add(torch.tensor(float(loss), requires_grad=True))
    assert found.curve == curve
    assert not losses or found.last == pytest.approx(losses[-1])
