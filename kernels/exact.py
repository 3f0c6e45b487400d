"""What makes the filter's choice the same on every backend and for any number of ranks.

A class's sum is taken of whole multiples of a unit, so no order of additions changes it. And where
rounding might decide which samples are nearest, distances are computed once more, in float64 and
with every addition in a fixed place.
"""

import math

import torch
from torch import Tensor

from kernels.groups import wide

BITS = 18
"""The largest value has at most 2**18 units: a float32 holds the sum of 64 such values exactly."""
SUBNORMAL = -126
"""The smallest exponent of which the unit is a float32."""
TOO_LARGE = 2.0**100
"""Differences of such values have squares beyond float32."""


def unit_for(largest: float) -> float:
    """The power of two in whose multiples values up to ``largest`` are added."""
    fraction, exponent = math.frexp(largest)
    exponent -= fraction == 0.5  # a power of two is its own bound
    return 2.0 ** (max(exponent, SUBNORMAL) - BITS)


def rounding(unit: float) -> tuple[float, int]:
    """A float32 beside which every value up to 2**18 units is a whole number of units.

    Added to a value and taken away again, it leaves the value rounded to units. And the bits of the
    float32 sum are the rounded number of units plus the second number given here, the constant's
    own bits.
    """
    constant = 1.5 * 2.0**23 * unit
    return constant, int(torch.tensor(constant, dtype=torch.float32).view(torch.int32))


def rounded(values: Tensor, unit: float) -> Tensor:
    """A copy of float32 values of at most 2**18 units, rounded to units, halves to even."""
    constant, _ = rounding(unit)
    return values.add(constant).sub_(constant)


def means(sums: Tensor, counts: Tensor, unit: float) -> Tensor:
    """(C, F) float32 means of (C, F) int64 sums of units, zero for an empty class."""
    double = wide(sums.device)
    return (sums.to(double) / counts.clamp(min=1).unsqueeze(1).to(double) * unit).float()


def ordered_distances(samples: Tensor, centres: Tensor) -> Tensor:
    """(M,) float64 Euclidean distances of the rows of (M, F) to those of (M, F).

    Halves of the squares are added until one column is left. Every step is of single elements,
    which round alike everywhere, so the distances have the same bits on all devices that have
    float64.
    """
    double = wide(samples.device)
    squares = (samples.to(double) - centres.to(double)).square_()
    while (width := squares.shape[1]) > 1:
        half = (width + 1) // 2
        squares[:, : width - half] += squares[:, half:]
        squares = squares[:, :half]
    return squares.squeeze(1).sqrt()
