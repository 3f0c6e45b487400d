"""What makes the filter's choice the same on every backend and for any number of ranks.

A class's sum is taken of whole multiples of a unit, so no order of additions changes it. And where
rounding might decide which samples are nearest, distances are computed once more, in float64 and
with every addition in a fixed place.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.groups import wide

# Decides between samples whose distances are too close for float32 to tell.

SMALL = 2.0**-48
"""Squares of smaller distances may lose digits in float32, or vanish."""


def relative_error(num_features: int) -> float:
    """Bound of the relative error of a backend's distances.

    No backend adds more than one square in 64 after another, beside a few dozen additions of such
    sums, and each addition is off by at most 2**-24. The root halves that error.
    """
    return (num_features / 64 + 32) * 2.0**-24


def nearest(
    distances: Tensor,
    labels: Tensor,
    thresholds: Tensor,
    quotas: Tensor,
    num_features: int,
    exact: Callable[[Tensor], Tensor],
) -> Tensor:
    """The numbers of the samples that stay, ascending (M,); rounding of distances decides nothing.

    A sample stays whose distance is below its class's threshold by more than the error that it may
    have. Those within the error are compared by ``exact`` distances, of equals the earlier ones
    stay. In a class these are rarely more than a few, but all where all samples are equal.

    Args:
        distances: (N,) float32.
        labels: (N,) in range.
        thresholds, quotas: (C,), see `Groups.thresholds`.
        num_features: of the samples.
        exact: float64 distances (M,) of the samples with these numbers (M,), ascending.
    """
    error = 2 * relative_error(num_features) * thresholds.clamp(min=SMALL)
    stay = distances < (thresholds - error).index_select(0, labels)
    close = (distances <= (thresholds + error).index_select(0, labels)).logical_xor_(stay)
    rows = close.nonzero().squeeze(1)  # all that follows is of these few
    classes = labels[rows]
    places = quotas - torch.zeros_like(quotas).scatter_add_(0, labels, stay.long())
    crowded = torch.bincount(classes, minlength=len(quotas)) > places
    stay[rows] = True
    tied = crowded[classes]
    if tied.any():
        rows, classes = rows[tied], classes[tied]
        stay[rows] = _first(exact(rows).to(rows.device), classes, places)
    return stay.nonzero().squeeze(1)


def _first(values: Tensor, classes: Tensor, places: Tensor) -> Tensor:
    """Which of (M,) values are among the first ``places`` (C,) of their class; ties by number."""
    order = values.argsort(stable=True)
    order = order[classes[order].argsort(stable=True)]
    counts = torch.bincount(classes, minlength=len(places))
    first = counts.cumsum(0) - counts
    by_class = classes[order]
    rank = torch.arange(len(order), device=order.device) - first[by_class]
    return torch.empty_like(order, dtype=torch.bool).index_put((order,), rank < places[by_class])


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
