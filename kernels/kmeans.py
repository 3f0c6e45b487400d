"""K-means of every class at once, by the operations of a fast backend's `Groups`."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.groups import Groups, wide

MAX_ITERATIONS = 100
RESOLUTION = 2**30  # of squared distances beside the largest; 2**32 samples fit 64 bits
Grouping = Callable[[Tensor, Tensor, int], Groups]


def draws(num_classes: int, num_clusters: int, seed: int, device: torch.device) -> Tensor:
    """(k, C) uniform numbers in [0, 1) to draw the start with: the same on every device."""
    stream = torch.Generator().manual_seed(seed)
    chances = torch.rand(num_clusters, num_classes, generator=stream, dtype=torch.float64)
    return chances.to(device, wide(device))


def cluster(
    group: Grouping, by_class: Groups, flat: Tensor, labels: Tensor, num_clusters: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Clusters each class by itself: k-means++, then Lloyd's iterations until nothing moves.

    Args:
        group: makes the backend's groups.
        by_class: the samples grouped by class.
        flat: (N, F) samples, N > 0.
        labels: (N,) classes. If some are out of range nothing fails, but the result is invalid.
        num_clusters: k.
        seed: draws the start.

    Returns:
        Centres (C, k, F) float32, zero for empty classes; the centre of a cluster that loses all
        its samples does not move. And distances (N,) of the samples to their class's nearest
        centre.
    """
    num_classes = len(by_class.bounds) - 1
    if num_clusters == 1:
        centres = by_class.means()
        return centres.unsqueeze(1), by_class.distances(centres)
    labels = labels.long().clamp(0, num_classes - 1)
    chances = draws(num_classes, num_clusters, seed, flat.device)
    centres = _start(by_class, flat, labels, chances)
    clusters, distances = _assign(by_class, centres)
    for _ in range(MAX_ITERATIONS):
        centres = _move(group, flat, labels * num_clusters + clusters, centres)
        before, (clusters, distances) = clusters, _assign(by_class, centres)
        if torch.equal(clusters, before):
            break
    return centres, distances


def _start(by_class: Groups, flat: Tensor, labels: Tensor, chances: Tensor) -> Tensor:
    """(C, k, F): the first centre is any sample, the others by squared distance to the nearest."""
    starts, ends = by_class.bounds[:-1], by_class.bounds[1:]
    counts = ends - starts
    occupied = (counts > 0).unsqueeze(1)

    def take(positions: Tensor) -> Tensor:
        # Empty classes have arbitrary positions, whose samples are set to zero.
        samples = by_class.order[positions.clamp(0, len(labels) - 1)]
        return flat[samples].float() * occupied

    centres = [take(starts + (chances[0] * counts).long())]
    nearest = by_class.distances(centres[0])
    for chance in chances[1:]:
        # Whole numbers, because running sums of floats vary from run to run on CUDA. One running
        # sum over all classes in order; a class's own is the difference between its ends.
        largest = nearest.new_zeros(len(counts)).scatter_reduce(0, labels, nearest, "amax")
        shares = torch.nan_to_num(nearest / largest[labels]).square()
        weights = (shares * RESOLUTION).long()[by_class.order]
        below = torch.cat((torch.zeros_like(starts[:1]), weights.cumsum(0)))
        target = below[starts] + (chance * (below[ends] - below[starts])).long()
        drawn = torch.searchsorted(below[1:], target, right=True)
        centres.append(take(torch.minimum(drawn, ends - 1)))
        nearest = torch.minimum(nearest, by_class.distances(centres[-1]))
    return torch.stack(centres, 1)


def _assign(by_class: Groups, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Number of the nearest centre (the first of equals) and the distance to it, each (N,)."""
    nearest = by_class.distances(centres[:, 0])
    clusters = torch.zeros_like(by_class.order)
    for j in range(1, centres.shape[1]):
        distances = by_class.distances(centres[:, j])
        clusters = torch.where(distances < nearest, j, clusters)
        nearest = torch.minimum(nearest, distances)
    return clusters, nearest


def _move(group: Grouping, flat: Tensor, clusters: Tensor, centres: Tensor) -> Tensor:
    """Moves each centre to the mean of its samples; ``clusters`` (N,) are indices into (C, k)."""
    shape = centres.shape
    by_cluster = group(flat, clusters, shape[0] * shape[1])
    moved = by_cluster.means()
    occupied = (by_cluster.bounds.diff() > 0).unsqueeze(1)
    return torch.where(occupied, moved, centres.reshape(moved.shape)).view(shape)
