"""Decides between samples whose distances are too close for float32 to tell."""

from collections.abc import Callable

import torch
from torch import Tensor

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
