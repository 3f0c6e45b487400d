"""The distance filter of FedMHO (Algorithm 2): per class, keep the samples nearest the centre."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.backends import resolve
from kernels.operators import kmeans_op, nearest_op


@dataclass(frozen=True)
class Filtered:
    """The result of a distance filter.

    ``indices`` (M,) int64: the kept samples, ascending. ``distances`` (N,) float32: of every
    sample to its class's centroid, or to the nearest of them. ``centroids``: zero for an empty
    class; float32, (num_classes, F) from `nearest_to_centroid` and (num_classes, num_clusters, F)
    from `kmeans_filter`. ``backend``: the implementation that ran.
    """

    indices: Tensor
    distances: Tensor
    centroids: Tensor
    backend: str


def nearest_to_centroid(
    samples: Tensor, labels: Tensor, num_classes: int, keep: float, *, backend: str = "auto"
) -> Filtered:
    """Keeps the ``floor(keep * n_c)`` samples of each class nearest to the class's mean.

    K-means with one cluster has the mean as its centre, so no iteration is needed. Of equally
    distant samples the earlier ones stay, and a class that has samples keeps at least one. A run
    repeats to the last bit on the same device.

    Args:
        samples: (N, ...) float32, float16 or bfloat16 (float64 is rounded to float32), on any
            device; everything after the first dimension is the feature. Sums are in float32.
        labels: (N,) integers in [0, num_classes), in any order, on the samples' device.
        num_classes: number of classes; some may be empty.
        keep: share to keep, in (0, 1]; 0.29 is taken as 29/100, not as the double below it.
        backend: "reference", "torch", "triton" (CUDA, or any device in Triton's interpreter), or
            "auto" for the fastest on the samples' device.

    Raises:
        ValueError: shapes or types that do not fit, ``keep`` or a label out of range, NaN or
            infinity (naming the first bad sample), samples whose squared distances overflow
            float32, or a backend that cannot run here.
    """
    flat = _flatten(samples)
    _check(flat, labels, num_classes, keep)
    chosen = resolve(backend, flat.device)
    indices, distances, centroids = nearest_op(flat, labels, num_classes, float(keep), chosen)
    return Filtered(indices, distances, centroids, chosen)


def kmeans_filter(
    samples: Tensor,
    labels: Tensor,
    num_classes: int,
    keep: float,
    *,
    num_clusters: int,
    seed: int,
    backend: str = "auto",
) -> Filtered:
    """Keeps the samples of each class nearest to any of the class's k-means centres.

    Every class is clustered by itself: centres start by k-means++ and move by Lloyd's iterations
    until no sample changes its cluster, at most 100 times. With one cluster the result is that of
    `nearest_to_centroid`.

    Args:
        samples, labels, num_classes, keep, backend: as for `nearest_to_centroid`.
        num_clusters: centres per class, k. A class with fewer distinct samples repeats some.
        seed: seeds the start. The same seed starts alike on every backend and device, but the
            start depends on the order of the samples.

    Raises:
        ValueError: as for `nearest_to_centroid`, or ``num_clusters`` below 1.
    """
    flat = _flatten(samples)
    _check(flat, labels, num_classes, keep)
    if num_clusters < 1:
        raise ValueError(f"num_clusters must be at least 1, got {num_clusters}")
    chosen = resolve(backend, flat.device)
    indices, distances, centroids = kmeans_op(
        flat, labels, num_classes, float(keep), num_clusters, seed, chosen
    )
    return Filtered(indices, distances, centroids, chosen)


def _flatten(samples: Tensor) -> Tensor:
    """(N, F) view of the samples, in a type that the backends take."""
    if not samples.is_floating_point():
        raise ValueError(f"samples must be floating point, got {samples.dtype}")
    if samples.dim() == 0:
        raise ValueError("samples must have a first dimension, got a scalar")
    flat = samples.detach()
    if samples.dim() != 2:
        flat = flat.flatten(1) if samples.dim() > 2 else flat.unsqueeze(1)
    if flat.shape[1] == 0:
        raise ValueError(f"samples have no features: {tuple(samples.shape)}")
    return flat if flat.dtype in (torch.float32, torch.float16, torch.bfloat16) else flat.float()


def _check(flat: Tensor, labels: Tensor, num_classes: int, keep: float) -> None:
    """Checks all that can be checked without looking at the values."""
    if labels.shape != flat.shape[:1]:
        raise ValueError(f"labels must be {tuple(flat.shape[:1])}, got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    if labels.device != flat.device:
        raise ValueError(f"labels are on {labels.device}, samples on {flat.device}")
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, got {num_classes}")
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be in (0, 1], got {keep}")
