"""The distance filter of FedMHO (Algorithm 2): per class, keep the samples nearest the mean."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Filtered:
    """What the filter found.

    ``indices`` (M,) int64: the kept samples, ascending. ``distances`` (N,) float32: of every
    sample to its class's centroid. ``centroids`` (num_classes, F) float32: zero for an empty
    class. ``backend``: the implementation that ran.
    """

    indices: Tensor
    distances: Tensor
    centroids: Tensor
    backend: str


def nearest_to_centroid(samples: Tensor, labels: Tensor, num_classes: int, keep: float) -> Filtered:
    """Keeps the ``floor(keep * n_c)`` samples of each class nearest to the class's mean.

    K-means with one cluster has the mean as its centre, so no iteration is needed. Of equally
    distant samples the earlier ones stay, and a class that has samples keeps at least one.

    Args:
        samples: (N, ...) floating point, on any device; everything after the first dimension is
            the feature.
        labels: (N,) int64 in [0, num_classes), in any order.
        num_classes: number of classes; some may be empty.
        keep: share to keep, in (0, 1].

    Raises:
        ValueError: shapes that do not fit, ``keep`` or a label out of range, NaN or infinity,
            or samples whose distances overflow float32.
    """
    flat = samples.flatten(1).float() if samples.dim() > 1 else samples.float().unsqueeze(1)
    _check(flat, labels, num_classes, keep)
    counts = torch.bincount(labels, minlength=num_classes)
    sums = flat.new_zeros(num_classes, flat.shape[1]).index_add_(0, labels, flat)
    centroids = sums / counts.clamp(min=1).unsqueeze(1)
    distances = _distances(flat, labels, centroids)
    if not torch.isfinite(distances).all():
        raise ValueError("samples are so large that their distances overflow")
    # Two stable sorts order by class, then distance, then index; then each class keeps its head.
    by_distance = torch.sort(distances, stable=True).indices
    order = by_distance[torch.sort(labels[by_distance], stable=True).indices]
    starts = counts.cumsum(0) - counts
    rank = torch.arange(len(labels), device=labels.device) - starts[labels[order]]
    kept = order[rank < _quota(counts, keep)[labels[order]]]
    return Filtered(kept.sort().values, distances, centroids, "torch")


def _quota(counts: Tensor, keep: float) -> Tensor:
    # keep * n can fall just short of a whole number (0.29 * 100 is 28.999…): allow for rounding.
    floor = (counts.double() * keep + 1e-9).floor().long()
    return torch.where(counts > 0, floor.clamp(min=1), floor)


def _distances(flat: Tensor, labels: Tensor, centroids: Tensor, block: int = 256) -> Tensor:
    # In blocks that stay in cache: the difference is never written out whole.
    distances = flat.new_empty(len(flat))
    for begin in range(0, len(flat), block):
        part = slice(begin, begin + block)
        distances[part] = (flat[part] - centroids[labels[part]]).square_().sum(1).sqrt_()
    return distances


def _check(flat: Tensor, labels: Tensor, num_classes: int, keep: float) -> None:
    if labels.shape != (len(flat),):
        raise ValueError(f"labels must be ({len(flat)},), got {tuple(labels.shape)}")
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be in (0, 1], got {keep}")
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < num_classes):
        raise ValueError(f"labels must be in [0, {num_classes})")
    bad = (~torch.isfinite(flat)).any(1).nonzero()
    if len(bad):
        raise ValueError(f"sample {int(bad[0])} has NaN or infinite values")
