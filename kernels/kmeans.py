"""K-means by the filter's exact sums and distances."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.exact import means
from kernels.filter import flatten
from kernels.groups import wide
from kernels.parts import Local, unit_of

MAX_ITERATIONS = 100
RESOLUTION = 2**30  # of squared distances beside the largest; 2**32 samples fit 64 bits


@dataclass(frozen=True)
class Clusters:
    """``centres`` (k, F) float32, and ``nearest`` (N,) int64: the number of each sample's."""

    centres: Tensor
    nearest: Tensor


def kmeans(samples: Tensor, num_clusters: int, *, seed: int, backend: str = "auto") -> Clusters:
    """Clusters samples: centres start by k-means++ and move by Lloyd's iterations.

    They end when no sample changes its cluster, after 100 iterations at most. A centre that loses
    all its samples stays where it is; a sample between two centres goes to the first.

    Args:
        samples: (N, ...) floating point, N > 0, on any device.
        num_clusters: k, at least 1. Fewer distinct samples repeat some.
        seed: seeds the start, which also depends on the order of the samples.
        backend: "torch", "triton", or "auto" for the fastest on the samples' device.

    Raises:
        ValueError: no samples or clusters, NaN or infinity, samples whose squared distances
            overflow float32, or a backend that cannot run here.
    """
    flat = flatten(samples)
    if not len(flat) or num_clusters < 1:
        raise ValueError(f"need a sample and a cluster, got {len(flat)} and {num_clusters}")
    in_classes = partial(Local, flat, device=flat.device, backend=backend)
    together = in_classes(torch.zeros(len(flat), dtype=torch.int64, device=flat.device), 1)
    unit = unit_of(together)
    centres = _start(together, flat, num_clusters, seed)
    nearest = _assign(together, centres)
    for _ in range(MAX_ITERATIONS):
        centres = _move(in_classes(nearest, num_clusters), centres, unit)
        before, nearest = nearest, _assign(together, centres)
        if torch.equal(nearest, before):
            break
    return Clusters(centres, nearest)


def _start(together: Local, flat: Tensor, num_clusters: int, seed: int) -> Tensor:
    """(k, F): the first centre is any sample, the others by squared distance to the nearest."""
    stream = torch.Generator().manual_seed(seed)
    chances = torch.rand(num_clusters, generator=stream, dtype=torch.float64)
    chances = chances.to(flat.device, wide(flat.device))
    drawn = (chances[:1] * len(flat)).long()
    centres = flat[drawn].float()
    nearest = together.distances(centres)
    for chance in chances[1:].split(1):
        # Whole numbers, because running sums of floats vary from run to run on CUDA.
        shares = torch.nan_to_num(nearest / nearest.max()).square()
        below = (shares * RESOLUTION).long().cumsum(0)
        drawn = torch.searchsorted(below, (chance * below[-1]).long(), right=True)
        centres = torch.cat((centres, flat[drawn.clamp(max=len(flat) - 1)].float()))
        nearest = torch.minimum(nearest, together.distances(centres[-1:]))
    return centres


def _assign(together: Local, centres: Tensor) -> Tensor:
    """(N,) number of the nearest centre, the first of equals."""
    return torch.stack([together.distances(centre) for centre in centres.split(1)]).argmin(0)


def _move(by_cluster: Local, centres: Tensor, unit: float) -> Tensor:
    """Each centre at the mean of its samples."""
    sums = by_cluster.sums(unit, whole=False)
    occupied = (sums.counts > 0).unsqueeze(1)
    return torch.where(occupied, means(sums.units, sums.counts, unit), centres)
