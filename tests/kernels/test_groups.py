"""What all backends share: samples by class, exact quotas, and labels that fit in few bits."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.backends import grouping
from kernels.groups import Groups, narrow, quotas, share
from kernels.interpreter import interpreted
from tests.kernels.cases import (
    CLASSES,
    DEVICE,
    SEEDS,
    SHARES,
    SIZES,
    draw,
    every_backend,
    examples,
    fast_backends,
    kept,
    run,
)

DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64)


def grouped(backend: str, samples: np.ndarray | Tensor, labels: np.ndarray | list[int]) -> Groups:
    """The samples by class, on this machine's device."""
    on_device = torch.as_tensor(samples).to(DEVICE)
    return grouping(backend)(on_device, torch.as_tensor(labels).to(DEVICE), CLASSES)


@examples
@given(
    exact=st.fractions(Fraction(1, 10**4), 1, max_denominator=10**4),
    counts=st.lists(st.integers(0, 10**7), min_size=1, max_size=20),
)
def test_a_quota_is_the_exact_floor_of_the_share_that_was_meant(
    exact: Fraction, counts: list[int]
) -> None:
    """At least one where there is a sample, and never more than there are."""
    expected = [min(n, max(1, n * exact.numerator // exact.denominator)) for n in counts]
    assert quotas(torch.tensor(counts), float(exact)).tolist() == expected


@pytest.mark.parametrize(
    ("keep", "meant"),
    [(0.29, (29, 100)), (0.1, (1, 10)), (1 / 3, (1, 3)), (1.0, (1, 1)), (1e-12, (0, 1))],
)
def test_a_share_is_taken_as_the_simple_fraction_that_it_was_typed_as(
    keep: float, meant: tuple[int, int]
) -> None:
    assert share(keep) == meant


@pytest.mark.parametrize("classes", [1, 126, 127, 128, 32_767, 32_768, 2**31 - 1, 2**31])
def test_labels_are_held_in_as_few_bits_as_hold_them_and_both_ends(classes: int) -> None:
    """One below zero and one above the last: where labels out of range are put."""
    found = narrow(classes)
    assert torch.tensor([-1, classes]).to(found).tolist() == [-1, classes]
    for smaller in DTYPES[: DTYPES.index(found)]:
        assert torch.iinfo(smaller).max < classes


@fast_backends
@examples
@given(sizes=SIZES, seed=SEEDS)
def test_samples_stand_by_class_and_within_a_class_by_number(
    backend: str, sizes: list[int], seed: int
) -> None:
    sizes = [*sizes[:-1], sizes[-1] + 1]  # there is a sample
    samples, labels = draw(sizes, 3, seed)
    groups = grouped(backend, samples, labels)
    order, bounds = groups.order.tolist(), groups.bounds.tolist()
    assert bounds == [0, *np.cumsum(sizes)]
    for c, (first, last) in enumerate(pairwise(bounds)):
        assert order[first:last] == np.flatnonzero(labels == c).tolist()


@fast_backends
@pytest.mark.parametrize("stranger", [-1, CLASSES, 2**40, -(2**40)])
def test_a_label_out_of_range_does_no_harm_until_it_is_told(backend: str, stranger: int) -> None:
    samples, labels = draw([3, 2, 0, 4], 3, seed=1)
    for changed, fits in ((labels, True), (np.where(labels == 1, stranger, labels), False)):
        groups = grouped(backend, samples, changed)
        distances = groups.distances(groups.means())
        assert groups.select(distances, 0.5).labels_fit == fits
        assert sorted(groups.order.tolist()) == list(range(9))


@fast_backends
def test_distances_are_to_the_centres_that_are_given(backend: str) -> None:
    samples, labels = draw([3, 2, 0, 4], 3, seed=1)
    centres = np.random.default_rng(2).normal(size=(CLASSES, 3)).astype(np.float32)
    found = grouped(backend, samples, labels).distances(torch.tensor(centres, device=DEVICE))
    expected = np.linalg.norm(samples - centres[labels], axis=1)
    np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-5)


@fast_backends
@examples
@given(distances=st.lists(st.integers(0, 3), min_size=1, max_size=30), keep=SHARES, data=st.data())
def test_the_nearest_of_each_class_are_selected_and_of_equals_the_first(
    backend: str, distances: list[int], keep: float, data: st.DataObject
) -> None:
    """Of distances that are no samples' own: what k-means selects by."""
    labels = data.draw(
        st.lists(st.integers(0, CLASSES - 1), min_size=len(distances), max_size=len(distances))
    )
    groups = grouped(backend, np.zeros((len(labels), 2), np.float32), labels)
    found = groups.select(torch.tensor(distances, dtype=torch.float32, device=DEVICE), keep)
    expected = []
    for c in range(CLASSES):
        own = [i for i, label in enumerate(labels) if label == c]
        stay = int(quotas(torch.tensor(len(own)), keep))
        expected += sorted(own, key=lambda i: (distances[i], i))[:stay]
    assert found.indices.tolist() == sorted(expected)
    assert found.largest == max(distances)


@fast_backends
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_distance_that_is_no_number_shows_in_the_largest(backend: str, bad: float) -> None:
    groups = grouped(backend, np.zeros((5, 2), np.float32), [0, 1, 1, 3, 3])
    distances = torch.tensor([1.0, 2.0, bad, 0.5, 9.0], device=DEVICE)
    assert not groups.select(distances, 0.5).largest < np.inf


@every_backend
def test_exactly_the_floor_of_the_share_stays(backend: str) -> None:
    """0.29 * 100 is 28.999... in floating point. Classes of many sizes, all at once."""
    sizes = torch.arange(1, 101)
    percents = range(1, 101)
    if interpreted():
        sizes, percents = torch.tensor([1, 2, 3, 50, 99, 100]), (1, 29, 57, 58, 100)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    samples = torch.rand(len(labels), 1, generator=torch.Generator().manual_seed(0))
    for percent in percents:
        found = run(samples, labels, percent / 100, backend, num_classes=len(sizes)).indices
        counts = torch.bincount(labels[found], minlength=len(sizes))
        assert counts.tolist() == (percent * sizes // 100).clamp(min=1).tolist()


@every_backend
def test_a_share_that_is_no_percentage_is_exact_too(backend: str) -> None:
    samples = torch.arange(300.0).unsqueeze(1)
    assert len(kept(samples, [0] * 300, 1 / 3, backend)) == 100
    assert len(kept(samples, [0] * 300, 2 / 3, backend)) == 200
