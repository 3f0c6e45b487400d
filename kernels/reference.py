"""The distance filter's reference backend: Algorithm 2 and k-means in plain form, in float64."""

import torch
from torch import Tensor

from kernels.groups import share
from kernels.kmeans import MAX_ITERATIONS, draws
from kernels.refusals import refuse_unfit_labels, refuse_unfit_samples

Found = tuple[Tensor, Tensor, Tensor]


def nearest(flat: Tensor, labels: Tensor, num_classes: int, keep: float) -> Found:
    """`nearest_to_centroid` for (N, F) samples: indices, distances, centroids."""
    indices, distances, centroids = kmeans(flat, labels, num_classes, keep, 1, seed=0)
    return indices, distances, centroids[:, 0]


def kmeans(
    flat: Tensor, labels: Tensor, num_classes: int, keep: float, num_clusters: int, seed: int
) -> Found:
    """`kmeans_filter` for (N, F) samples: indices, distances, centroids (C, k, F)."""
    if not ((labels >= 0) & (labels < num_classes)).all():
        refuse_unfit_labels(num_classes)
    samples = flat.double()
    distances = samples.new_zeros(len(samples))
    centroids = samples.new_zeros(num_classes, num_clusters, samples.shape[1])
    chances = draws(num_classes, num_clusters, seed, samples.device)
    numerator, denominator = share(keep)
    kept = [labels.new_empty(0, dtype=torch.int64)]
    for c in range(num_classes):
        own = (labels == c).nonzero().squeeze(1)
        if len(own) == 0:
            continue
        centroids[c] = _cluster(samples[own], chances[:, c])
        distances[own] = _all_distances(samples[own], centroids[c]).min(1).values
        stay = max(1, len(own) * numerator // denominator)
        kept.append(own[torch.sort(distances[own], stable=True).indices[:stay]])
    if not torch.isfinite(distances.square().float()).all():
        refuse_unfit_samples(flat)
    return torch.cat(kept).sort().values, distances.float(), centroids.float()


def _cluster(samples: Tensor, chances: Tensor) -> Tensor:
    """(k, F) centres of one class's (n, F) samples; ``chances`` (k,) in [0, 1) draw the start."""
    if len(chances) == 1:
        return samples.mean(0, keepdim=True)
    centres = _start(samples, chances)
    before = None
    for _ in range(MAX_ITERATIONS):
        nearest = _all_distances(samples, centres).argmin(1)
        if before is not None and torch.equal(nearest, before):
            break
        for j in range(len(centres)):
            if (nearest == j).any():
                centres[j] = samples[nearest == j].mean(0)
        before = nearest
    return centres


def _start(samples: Tensor, chances: Tensor) -> Tensor:
    """k-means++: each further centre is a sample, drawn by its squared distance to the nearest."""
    centres = samples[int(chances[0] * len(samples))].unsqueeze(0)
    for chance in chances[1:]:
        cumulated = _all_distances(samples, centres).min(1).values.square().cumsum(0)
        drawn = int((cumulated <= chance * cumulated[-1]).sum())
        centres = torch.cat((centres, samples[[min(drawn, len(samples) - 1)]]))
    return centres


def _all_distances(samples: Tensor, centres: Tensor) -> Tensor:
    """(n, k) distances of (n, F) samples to (k, F) centres."""
    return torch.stack([(samples - c).square().sum(1).sqrt() for c in centres], 1)
