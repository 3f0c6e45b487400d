"""The curve of a training's losses by step."""

import pytest
import torch

from fl.training.recipe import POINTS, StepLosses


def of(losses: list[float]) -> StepLosses:
    found = StepLosses()
    for loss in losses:
        found.add(torch.tensor(loss, requires_grad=True))
    return found


def test_of_few_steps_each_is_a_point() -> None:
    losses = of([3.0, 2.0, 1.234567])
    assert losses.curve == [3.0, 2.0, 1.2346]
    assert losses.last == pytest.approx(1.234567)


def test_of_many_steps_equal_parts_are() -> None:
    curve = of([float(k) for k in range(4 * POINTS)]).curve
    assert len(curve) == POINTS
    assert (curve[0], curve[-1]) == (1.5, 4 * POINTS - 2.5)


def test_there_is_no_curve_of_nothing_or_of_what_is_not_finite() -> None:
    assert of([]).curve == []
    assert of([1.0, float("inf")]).curve == []
