"""Clusters of clients: drawn at random, or heterogeneous by what the clients know."""

from collections.abc import Sequence

import numpy as np

from fl.errors import UserError
from fl.seeding import numpy_generator


def random_clusters(members: Sequence[int], count: int, seed: int) -> list[list[int]]:
    """The clients in ``count`` clusters of sizes that differ by one at most, drawn at random.

    Raises:
        UserError: more clusters than clients.
    """
    check_clusters(count, len(members), "clusters")
    drawn = numpy_generator(seed, "clusters").permutation(list(members))
    return [sorted(part.tolist()) for part in np.array_split(drawn, count)]


def check_clusters(count: int, num_clients: int, setting: str) -> None:
    """Raises `UserError` where there are more clusters or groups than clients."""
    if count > num_clients:
        raise UserError(f"{setting} must be in 1 to {num_clients}, the clients, got {count}")


def heterogeneous_clusters(groups: Sequence[int], seed: int) -> list[list[int]]:
    """ClusterSampling (HFLDD's Algorithm 1): one client of each group that is left, drawn at
    random, again and again, until none is left.

    Args:
        groups: the number of each client's group, of clients that are alike.
        seed: of the draw.
    """
    rng = numpy_generator(seed, "cluster-sampling")
    left = [
        rng.permutation([k for k, own in enumerate(groups) if own == group]).tolist()
        for group in sorted(set(groups))
    ]
    clusters = []
    while any(left):
        clusters.append(sorted(group.pop() for group in left if group))
    return clusters


def random_heads(clusters: Sequence[Sequence[int]], seed: int) -> list[int]:
    """One client of each cluster, drawn at random."""
    rng = numpy_generator(seed, "heads")
    return [int(rng.choice(list(cluster))) for cluster in clusters]
