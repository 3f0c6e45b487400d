"""What makes the filter's choice the same on every backend and for any number of ranks.

A class's sum is taken of whole multiples of a unit, so no order of additions changes it. And where
rounding might decide which samples are nearest, distances are computed once more, in float64 and
with every addition in a fixed place.
"""

import math
import struct

import torch
from torch import Tensor

from kernels.groups import wide

# Decides between samples whose distances are too close for float32 to decide.

SMALL = 2.0**-48
"""Squares of smaller distances may lose digits in float32, or vanish."""


def relative_error(num_features: int) -> float:
    """Bound of the relative error of a backend's distances.

    No backend adds more than one square in 64 after another, beside a few dozen additions of such
    sums, and each addition is off by at most 2**-24. The root halves that error.
    """
    return (num_features / 64 + 32) * 2.0**-24


def class_thresholds(distances: Tensor, labels: Tensor, counts: Tensor, quotas: Tensor) -> Tensor:
    """(C,) float32: the k-th smallest of each class's distances, where k is its quota.

    One sort of 64-bit numbers: the class, and the bits of the distance, which are ordered like it.

    Args:
        distances: (N,) float32, not negative, N > 0.
        labels: (N,) int64 in range.
        counts: (C,) of samples. Of an empty class the threshold may be any of the distances.
        quotas: (C,), at most the counts.
    """
    ordered = ((labels << 32) | distances.view(torch.int32)).sort().values
    places = (counts.cumsum(0) - counts + quotas - 1).clamp(min=0)
    return ordered[places].to(torch.int32).view(torch.float32)


def separated(
    distances: Tensor, labels: Tensor, thresholds: Tensor, quotas: Tensor, num_features: int
) -> tuple[Tensor, Tensor]:
    """Which samples stay for certain (N,), and which only exact distances can decide (N,).

    A sample stays whose distance is below its class's threshold by more than the error that it may
    have. Those within the error stay too if the quota has a place for all of them; else `settle`
    decides. In a class these are rarely more than a few, but all where all samples are equal.

    Args:
        distances: (N,) float32.
        labels: (N,) in range.
        thresholds, quotas: (C,), see `class_thresholds`.
        num_features: of the samples.
    """
    error = 2 * relative_error(num_features) * thresholds.clamp(min=SMALL)
    within = distances <= (thresholds + error).index_select(0, labels)
    roomy = torch.zeros_like(quotas).scatter_add_(0, labels, within.long()) <= quotas
    certain = (thresholds - error).masked_fill_(roomy, torch.inf)
    stay = within & (distances < certain.index_select(0, labels))
    return stay, within ^ stay


def settle(stay: Tensor, rows: Tensor, exact: Tensor, labels: Tensor, quotas: Tensor) -> None:
    """Adds to those that ``stay`` (N,) the nearest of ``rows``, until each class has its quota.

    Args:
        rows: (M,) the numbers of the samples that `separated` could not decide, ascending: of
            equally distant ones the earlier stay.
        exact: (M,) float64 distances of ``rows``.
        labels, quotas: as of `separated`.
    """
    places = quotas - torch.zeros_like(quotas).scatter_add_(0, labels, stay.long())
    classes = labels[rows]
    order = exact.argsort(stable=True)
    order = order[classes[order].argsort(stable=True)]
    counts = torch.zeros_like(places).scatter_add_(0, classes, torch.ones_like(classes))
    first = counts.cumsum(0) - counts
    by_class = classes[order]
    rank = torch.arange(len(order), device=order.device) - first[by_class]
    stay[rows[order]] = rank < places[by_class]


def numbers(chosen: Tensor, count: int) -> Tensor:
    """The positions of the ``count`` true values of (N,), ascending.

    As the host knows their count, it need not wait for the device, as it must in `nonzero`.
    """
    return torch.repeat_interleave(chosen.long(), output_size=count)


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
    (bits,) = struct.unpack("<i", struct.pack("<f", constant))
    return constant, bits


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
