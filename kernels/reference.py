"""The distance filter's reference backend: Algorithm 2 as a loop over the classes, in float64."""

import torch
from torch import Tensor

from kernels.exact import TOO_LARGE, ordered_distances, unit_for
from kernels.groups import refuse_large_samples, refuse_unfit_labels, refuse_unfit_samples, share


def nearest(
    flat: Tensor, labels: Tensor, num_classes: int, keep: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`nearest_to_centroid` for (N, F) samples: indices, distances, centroids."""
    if not ((labels >= 0) & (labels < num_classes)).all():
        refuse_unfit_labels(num_classes)
    samples = flat.double()
    if not torch.isfinite(samples).all():
        refuse_unfit_samples(flat)
    largest = float(samples.abs().max()) if len(samples) else 0.0
    unit = unit_for(largest)
    distances = samples.new_zeros(len(samples))
    centroids = samples.new_zeros(num_classes, samples.shape[1], dtype=torch.float32)
    numerator, denominator = share(keep)
    kept = [labels.new_empty(0, dtype=torch.int64)]
    for c in range(num_classes):
        own = (labels == c).nonzero().squeeze(1)
        if len(own) == 0:
            continue
        units = (samples[own] / unit).round().long().sum(0)
        centroids[c] = units.double() / len(own) * unit
        distances[own] = ordered_distances(samples[own], centroids[c].expand_as(samples[own]))
        stay = max(1, len(own) * numerator // denominator)
        kept.append(own[torch.sort(distances[own], stable=True).indices[:stay]])
    if largest > TOO_LARGE or not torch.isfinite(distances.square().float()).all():
        refuse_large_samples()
    return torch.cat(kept).sort().values, distances.float(), centroids
