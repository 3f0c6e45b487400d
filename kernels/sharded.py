"""The distance filter for samples that are spread over several ranks, with the same result.

Every rank computes its `magnitude`; with `unit_for` the largest of them, every rank computes its
`class_sums`, whose totals give the `centroids`; every rank computes its `distances`; and `nearest`
chooses among all of them. The same samples are kept however they are spread over the ranks: the
sums are exact, so they do not depend on their order, and all else is done row by row.
"""

import math

import torch
from torch import Tensor

from kernels.backends import grouping, resolve
from kernels.batched import TorchGroups
from kernels.groups import wide
from kernels.refusals import refuse_unfit_labels, refuse_unfit_samples

DIGITS = 52  # of a double's 53, in which whole numbers add up exactly
ROWS = 4096  # rows taken to double at a time


def magnitude(samples: Tensor) -> float:
    """The largest absolute value of (N, ...) samples; 0 without any.

    Raises:
        ValueError: NaN or infinity.
    """
    flat = samples.flatten(1)
    if not flat.numel():
        return 0.0
    low, high = flat.aminmax()
    largest = max(-low.item(), high.item())
    if not largest < torch.inf:
        refuse_unfit_samples(flat)
    return largest


def unit_for(largest: float, count: int) -> float:
    """The power of two in whose multiples ``count`` values up to ``largest`` are added exactly."""
    if largest == 0:
        return 1.0
    return 2.0 ** (math.frexp(largest)[1] + math.ceil(math.log2(max(count, 1))) - DIGITS)


def class_sums(samples: Tensor, labels: Tensor, num_classes: int, unit: float) -> Tensor:
    """(C, F + 1) float64: for each class the sum of its samples in units, and their number.

    Args:
        samples: (N, ...) floating point, no value above the one that ``unit`` was made for.
        labels: (N,) int64.
        num_classes: C.
        unit: values are rounded to its multiples, so that a class's sum is exact.

    Raises:
        ValueError: a label out of range.
    """
    flat = samples.flatten(1)
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < num_classes):
        refuse_unfit_labels(num_classes)
    sums = torch.zeros(num_classes, flat.shape[1], dtype=wide(flat.device), device=flat.device)
    for rows, own in zip(flat.split(ROWS), labels.split(ROWS), strict=True):
        # Atomic on CUDA, in any order, but exact.
        sums.index_add_(0, own, rows.to(sums.dtype).div_(unit).round_())
    counts = torch.bincount(labels, minlength=num_classes).to(sums)
    return torch.cat((sums, counts.unsqueeze(1)), 1)


def centroids(sums: Tensor, unit: float) -> Tensor:
    """(C, F) float32 means, zero for an empty class, from the total of all `class_sums`."""
    return (sums[:, :-1] / sums[:, -1:].clamp(min=1) * unit).float()


def distances(
    samples: Tensor, labels: Tensor, centroids: Tensor, *, backend: str = "auto"
) -> Tensor:
    """(N,) float32 distances of (N, ...) samples to their classes' rows of ``centroids`` (C, F)."""
    flat = samples.flatten(1)
    if not len(flat):
        return flat.new_empty(0, dtype=torch.float32)
    group = grouping(resolve(backend, flat.device))(flat, labels, len(centroids))
    return group.distances(centroids)


def nearest(distances: Tensor, labels: Tensor, num_classes: int, keep: float) -> Tensor:
    """(M,) int64, ascending: for each class the nearest ``floor(keep * n)`` of (N,) distances.

    Of equally distant samples the earlier ones stay, and a class with samples keeps at least one.

    Raises:
        ValueError: distances that overflowed.
    """
    if not len(distances):
        return labels.new_empty(0)
    found = TorchGroups(distances.unsqueeze(1), labels, num_classes).select(distances, keep)
    if not found.largest < torch.inf:
        raise ValueError("samples are so large that their distances overflow")
    return found.indices
