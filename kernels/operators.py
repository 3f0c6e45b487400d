"""The filter as operators of torch, so that torch.compile and torch.export see it whole.

The number of kept samples depends on the data. Where torch.compile(fullgraph=True) refuses that,
set ``torch._dynamo.config.capture_dynamic_output_shape_ops``.
"""

import math

import torch
from torch import Tensor

from kernels import reference
from kernels.backends import grouping
from kernels.groups import Selection
from kernels.kmeans import Grouping, cluster
from kernels.refusals import refuse_unfit_labels, refuse_unfit_samples

Found = tuple[Tensor, Tensor, Tensor]  # indices (M,), distances (N,), centroids

SMALLEST = 2.0**-60  # squares of smaller distances lose digits in float32


@torch.library.custom_op(
    "onefold::nearest_to_centroid",
    mutates_args=(),
    schema="(Tensor samples, Tensor labels, int num_classes, float keep, str backend)"
    " -> (Tensor, Tensor, Tensor)",
)
def nearest_op(
    samples: Tensor, labels: Tensor, num_classes: int, keep: float, backend: str
) -> Found:
    """`nearest_to_centroid` for (N, F) samples and a resolved backend."""
    if len(samples) and backend == "reference":
        return reference.nearest(samples, labels, num_classes, keep)
    indices, distances, centroids = _filter(samples, labels, num_classes, keep, 1, 0, backend)
    return indices, distances, centroids.squeeze(1)


@torch.library.custom_op(
    "onefold::kmeans_filter",
    mutates_args=(),
    schema="(Tensor samples, Tensor labels, int num_classes, float keep, int num_clusters, "
    "int seed, str backend) -> (Tensor, Tensor, Tensor)",
)
def kmeans_op(
    samples: Tensor,
    labels: Tensor,
    num_classes: int,
    keep: float,
    num_clusters: int,
    seed: int,
    backend: str,
) -> Found:
    """`kmeans_filter` for (N, F) samples and a resolved backend."""
    if len(samples) and backend == "reference":
        return reference.kmeans(samples, labels, num_classes, keep, num_clusters, seed)
    return _filter(samples, labels, num_classes, keep, num_clusters, seed, backend)


@nearest_op.register_fake
def _(samples: Tensor, labels: Tensor, num_classes: int, keep: float, backend: str) -> Found:
    return _fake(samples, (num_classes, samples.shape[1]))


@kmeans_op.register_fake
def _(
    samples: Tensor,
    labels: Tensor,
    num_classes: int,
    keep: float,
    num_clusters: int,
    seed: int,
    backend: str,
) -> Found:
    return _fake(samples, (num_classes, num_clusters, samples.shape[1]))


def _fake(samples: Tensor, centroids: tuple[int, ...]) -> Found:
    kept = torch.library.get_ctx().new_dynamic_size()
    return (
        samples.new_empty(kept, dtype=torch.int64),
        samples.new_empty(samples.shape[0], dtype=torch.float32),
        samples.new_empty(centroids, dtype=torch.float32),
    )


def _filter(
    flat: Tensor,
    labels: Tensor,
    num_classes: int,
    keep: float,
    num_clusters: int,
    seed: int,
    backend: str,
) -> Found:
    """Centres, distances, selection; then checks whether the input was valid."""
    if len(flat) == 0:
        centroids = flat.new_zeros(num_classes, num_clusters, flat.shape[1], dtype=torch.float32)
        return labels.new_empty(0, dtype=torch.int64), centroids.new_empty(0), centroids
    group = grouping(backend)
    settings = (group, labels, num_classes, keep, num_clusters, seed)
    selection, distances, centroids = _select(flat, *settings)
    if not selection.labels_fit:
        refuse_unfit_labels(num_classes)
    if not selection.largest < torch.inf:
        refuse_unfit_samples(flat)
    scale = _scale(flat, selection.largest)
    if scale != 1:
        selection, distances, centroids = _select(flat.float() * scale, *settings)
        distances, centroids = distances / scale, centroids / scale
    return selection.indices, distances, centroids


def _select(
    flat: Tensor,
    group: Grouping,
    labels: Tensor,
    num_classes: int,
    keep: float,
    num_clusters: int,
    seed: int,
) -> tuple[Selection, Tensor, Tensor]:
    by_class = group(flat, labels, num_classes)
    centroids, distances = cluster(group, by_class, flat, labels, num_clusters, seed)
    return by_class.select(distances, keep), distances, centroids


def _scale(flat: Tensor, largest_distance: float) -> float:
    """Power of two that scales samples as small as 1e-30 so that squares lose no digits."""
    if largest_distance >= SMALLEST:
        return 1.0
    magnitude = float(flat.abs().max())
    if not 0 < magnitude < SMALLEST:  # equal samples, not small ones
        return 1.0
    return 2.0 ** min(126, -math.frexp(magnitude)[1])
