"""Units, rounding to them, means, and distances whose additions have a fixed place."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.exact import BITS, means, ordered_distances, rounded, rounding, unit_for
from tests.kernels.cases import SEEDS, examples

FLOATS = st.floats(width=32, min_value=2.0**-120, max_value=2.0**99)


@examples
@given(largest=FLOATS)
def test_the_largest_value_has_between_half_of_and_all_the_units(largest: float) -> None:
    assert 2 ** (BITS - 1) < largest / unit_for(largest) <= 2**BITS


def test_pixels_have_the_unit_of_one() -> None:
    above_half = math.nextafter(0.5, 1)
    assert unit_for(above_half) == unit_for(0.9) == unit_for(1.0) == 2.0**-18
    assert unit_for(0.5) == 2.0**-19
    assert unit_for(math.nextafter(1.0, 2)) == 2.0**-17


@pytest.mark.parametrize("largest", [2.0**-149, 2.0**-130, 1e-38, 0.7, 1.0, 3.0, 2.0**99])
def test_beside_the_constant_a_value_is_rounded_and_its_bits_are_its_units(largest: float) -> None:
    unit = unit_for(largest)
    constant, bits = rounding(unit)
    stream = torch.Generator().manual_seed(0)
    values = largest * (2 * torch.rand(1000, generator=stream, dtype=torch.float64) - 1)
    values = torch.cat((values, torch.tensor([largest, -largest, 0.0]))).float()
    found = (values + constant).view(torch.int32) - bits
    expected = (values.double() / unit).round()
    assert found.tolist() == expected.long().tolist()
    assert torch.equal(rounded(values, unit).double(), expected * unit)


def test_means_are_the_sums_units_over_the_counts() -> None:
    sums = torch.tensor([[3 << 16, -(1 << 17)], [0, 0]])
    found = means(sums, torch.tensor([3, 0]), unit_for(1.0))
    assert found.dtype == torch.float32
    assert found.tolist() == [[0.25, float(np.float32(-1 / 6))], [0.0, 0.0]]


@examples
@given(rows=st.integers(1, 5), features=st.integers(1, 70), seed=SEEDS)
def test_ordered_distances_are_the_distances(rows: int, features: int, seed: int) -> None:
    stream = np.random.default_rng(seed)
    samples, centres = stream.normal(size=(2, rows, features)).astype(np.float32)
    expected = [math.dist(a, b) for a, b in zip(samples.tolist(), centres.tolist(), strict=True)]
    found = ordered_distances(torch.tensor(samples), torch.tensor(centres))
    assert found.tolist() == pytest.approx(expected, rel=1e-14)


def test_a_row_has_the_same_distance_in_any_company() -> None:
    stream = torch.Generator().manual_seed(0)
    samples = torch.rand(300, 785, generator=stream)
    centres = torch.rand(1, 785, generator=stream).expand(300, 785)
    found = ordered_distances(samples, centres)
    for rows in ([7], [299, 7], list(range(5, 250))):
        assert torch.equal(ordered_distances(samples[rows], centres[rows]), found[rows])
