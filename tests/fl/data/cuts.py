"""Partitions of sixty thousand samples in ten balanced classes, and what holds of every one."""

import numpy as np

from fl.data.partition import Partition, PartitionConfig, make_partition

BALANCED = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))


def cut(
    num_clients: int,
    config: PartitionConfig | None = None,
    *,
    labels: np.ndarray = BALANCED,
    alpha: float = 0.5,
    seed: int = 0,
) -> Partition:
    return make_partition(
        labels, num_clients, 10, config or PartitionConfig(), alpha=alpha, seed=seed
    )


def sizes(partition: Partition) -> np.ndarray:
    return np.array([len(indices) for indices in partition.train])


def classes_held(partition: Partition) -> float:
    """Mean number of classes per client."""
    return float((partition.counts > 0).sum(axis=1).mean())


def assert_sound(partition: Partition, labels: np.ndarray, num_clients: int) -> None:
    assert len(partition.train) == len(partition.test) == num_clients
    dealt = np.concatenate([*partition.train, *partition.test])
    assert dealt.dtype == np.int64
    assert len(np.unique(dealt)) == len(dealt)
    for indices, counts in zip(partition.train, partition.counts, strict=True):
        assert np.array_equal(np.sort(indices), indices)
        assert np.array_equal(np.bincount(labels[indices], minlength=10), counts)
