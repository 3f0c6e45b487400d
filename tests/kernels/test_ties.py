"""Samples too close for float32 to tell apart: exact distances decide, then numbers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.exact import class_thresholds, relative_error, separated, settle
from kernels.filter import Local
from kernels.groups import quotas
from tests.kernels.cases import CLASSES, SEEDS, every_backend, examples, fast_backends, run

pytestmark = pytest.mark.gpu


def chosen(
    rough: list[float], exact: Callable[[Tensor], Tensor], labels: list[int], keep: float
) -> list[int]:
    """The numbers that stay, of samples with these distances; 16 features."""
    distances, classes = torch.tensor(rough), torch.tensor(labels)
    counts = torch.bincount(classes)
    quota = quotas(counts, keep)
    thresholds = class_thresholds(distances, classes, counts, quota)
    stay, tied = separated(distances, classes, thresholds, quota, 16)
    rows = tied.nonzero().squeeze(1)
    if len(rows):
        settle(stay, rows, exact(rows), classes, quota)
    return stay.nonzero().squeeze(1).tolist()


def told(*distances: float) -> Callable[[Tensor], Tensor]:
    return lambda numbers: torch.tensor(distances, dtype=torch.float64)[numbers]


NEAR = 1 + 2.0**-22
"""Beside 1: another float, but within the error."""


def test_what_float32_cannot_tell_is_told_by_the_exact_distances() -> None:
    rough = [1.0, NEAR, 1.0, 0.3, 2.0]
    assert chosen(rough, told(3, 1, 2, 0, 0), [0] * 5, 0.4) == [1, 3]
    assert chosen(rough, told(3, 1, 2, 0, 0), [0] * 5, 0.6) == [1, 2, 3]


def test_what_float32_can_tell_is_not_asked_for() -> None:
    def never(numbers: Tensor) -> Tensor:
        raise AssertionError(f"asked for {numbers.tolist()}")

    rough, labels = [1.0, 1.001, 5.0, NEAR, 1.0], [0, 0, 1, 2, 2]
    assert chosen(rough, never, labels, 1.0) == [0, 1, 2, 3, 4]
    assert chosen(rough[:3], never, labels[:3], 0.5) == [0, 2]
    assert chosen([1.0, NEAR, NEAR, 2.0], never, [0] * 4, 0.75) == [0, 1, 2]


def test_of_equals_the_earlier_stay_and_classes_do_not_mix() -> None:
    labels = [1, 0, 1, 0, 1, 0]
    assert chosen([1.0, NEAR] * 3, told(*[1] * 6), labels, 0.34) == [0, 1]
    assert chosen([1.0] * 6, told(6, 5, 4, 3, 2, 1), labels, 0.67) == [2, 3, 4, 5]


def test_distances_whose_squares_vanish_are_told_apart() -> None:
    assert chosen([0.0, 0.0, 0.0], told(3e-30, 1e-30, 2e-30), [0] * 3, 0.67) == [1, 2]


@fast_backends
@pytest.mark.parametrize("features", [1, 3, 100, 784, 5000])
def test_no_backends_distances_are_further_off_than_their_bound(
    backend: str, features: int
) -> None:
    stream = torch.Generator().manual_seed(features)
    samples = torch.rand(60, features, generator=stream) ** 4
    found = run(samples, [0, 1, 2] * 20, 0.5, backend)
    local = Local(samples, torch.tensor([0, 1, 2] * 20), CLASSES, device=torch.device("cpu"))
    exact = local.ordered_distances(torch.arange(60), found.centroids)
    off = (found.distances - exact).abs() / exact
    assert off.max() < relative_error(features) / 2


@every_backend
@examples
@given(count=st.integers(2, 40), features=st.integers(1, 40), seed=SEEDS)
def test_every_backend_keeps_the_same_of_many_near_ties(
    backend: str, count: int, features: int, seed: int
) -> None:
    """Samples around one centre, as far as each other but for the last bits."""
    stream = np.random.default_rng(seed)
    half = stream.normal(size=(count, features))
    half /= np.linalg.norm(half, axis=1, keepdims=True)
    samples = np.concatenate((half, -half)).astype(np.float32)
    labels = np.tile(np.arange(count) % 2, 2)
    expected = run(samples, labels, 0.5, "reference").indices
    assert torch.equal(run(samples, labels, 0.5, backend).indices, expected)
