"""What all backends share: samples by class, exact quotas, and labels that fit in few bits."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.backends import grouping
from kernels.exact import class_thresholds, unit_for
from kernels.groups import Groups, interpreted, narrow, quotas, share
from tests.kernels.cases import (
    CLASSES,
    DEVICE,
    SEEDS,
    SHARES,
    draw,
    every_backend,
    examples,
    fast_backends,
    run,
)

pytestmark = pytest.mark.gpu

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
@pytest.mark.parametrize("stranger", [-1, CLASSES, 2**40, -(2**40)])
def test_a_sample_whose_label_is_out_of_range_is_not_counted(backend: str, stranger: int) -> None:
    samples, labels = draw([3, 2, 0, 4], 3, seed=1)
    strange = grouped(backend, samples, np.where(labels == 1, stranger, labels))
    assert strange.sums(UNIT, whole=False).counts.tolist() == [3, 0, 0, 4]


UNIT = unit_for(8.0)
"""No sample of `draw` is above 8."""


@fast_backends
@examples
@given(
    sizes=st.lists(st.integers(0, 600), min_size=CLASSES, max_size=CLASSES).filter(any),
    features=st.integers(1, 9),
    seed=SEEDS,
)
def test_sums_are_those_of_whole_numbers(
    backend: str, sizes: list[int], features: int, seed: int
) -> None:
    if interpreted():
        sizes = [size // 4 for size in sizes[:-1]] + [sizes[-1] // 4 + 1]
    samples, labels = draw(sizes, features, seed)
    found = grouped(backend, samples, labels).sums(UNIT, whole=False)
    units = np.round(samples.astype(np.float64) / UNIT).astype(np.int64)
    assert found.counts.tolist() == sizes
    for c in range(CLASSES):
        assert found.units[c].tolist() == units[labels == c].sum(0).tolist()


@fast_backends
@pytest.mark.parametrize("size", [1, 63, 64, 65, 197, 1000])
def test_the_largest_values_are_added_exactly(backend: str, size: int) -> None:
    """All but the first have an odd number of units, next to as many as there can be."""
    samples = torch.full((size, 2), 1 - 2.0**-18)
    samples[0] = -1.0
    sums = grouped(backend, samples, [2] * size).sums(2.0**-18, whole=True)
    total = (size - 1) * (2**18 - 1) - 2**18
    assert sums.units.tolist() == [[0, 0], [0, 0], [total] * 2, [0, 0]]


@fast_backends
def test_distances_are_to_the_centres_that_are_given(backend: str) -> None:
    samples, labels = draw([3, 2, 0, 4], 3, seed=1)
    centres = np.random.default_rng(2).normal(size=(CLASSES, 3)).astype(np.float32)
    found = grouped(backend, samples, labels).distances(torch.tensor(centres, device=DEVICE))
    expected = np.linalg.norm(samples - centres[labels], axis=1)
    np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-5)


@examples
@given(distances=st.lists(st.floats(0, width=32), min_size=1, max_size=30), keep=SHARES, seed=SEEDS)
def test_a_threshold_is_the_last_distance_within_the_quota(
    distances: list[float], keep: float, seed: int
) -> None:
    """Of distances of all sizes, infinite ones too."""
    labels = np.random.default_rng(seed).integers(0, CLASSES, len(distances))
    counts = torch.bincount(torch.tensor(labels), minlength=CLASSES)
    quota = quotas(counts, keep)
    found = class_thresholds(torch.tensor(distances), torch.tensor(labels), counts, quota)
    for c, places in enumerate(quota.tolist()):
        own = sorted(d for d, label in zip(distances, labels, strict=True) if label == c)
        assert not own or found[c].item() == own[places - 1]


@every_backend
def test_exactly_the_floor_of_the_share_stays(backend: str) -> None:
    """0.29 * 100 is 28.999... in floating point. Classes of many sizes, all at once."""
    sizes = torch.arange(1, 101)
    percents = range(1, 101)
    if backend == "reference" or interpreted():
        sizes, percents = torch.tensor([1, 2, 3, 50, 99, 100]), (1, 29, 57, 58, 100)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    samples = torch.rand(len(labels), 1, generator=torch.Generator().manual_seed(0))
    for percent in percents:
        found = run(samples, labels, percent / 100, backend, num_classes=len(sizes)).indices
        counts = torch.bincount(labels[found], minlength=len(sizes))
        assert counts.tolist() == (percent * sizes // 100).clamp(min=1).tolist()
