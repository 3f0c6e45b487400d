"""Partitions by a fixed number of classes per client."""

import numpy as np
import pytest

from fl.data.partition import PartitionConfig, make_partition
from fl.errors import UserError
from tests.fl.data.cuts import BALANCED, assert_sound, cut, sizes


@pytest.mark.parametrize(("num_clients", "per_client"), [(5, 2), (7, 3), (10, 1), (30, 10)])
def test_classes_deals_every_class(num_clients: int, per_client: int) -> None:
    config = PartitionConfig(kind="classes", classes_per_client=per_client)
    partition = cut(num_clients, config)
    assert_sound(partition, BALANCED, num_clients)
    assert ((partition.counts > 0).sum(axis=1) == per_client).all()
    assert (partition.counts.sum(axis=0) == 6000).all()
    holders = (partition.counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for column in partition.counts.T:
        assert np.ptp(column[column > 0]) <= 1


def test_classes_without_a_holder_are_left_out() -> None:
    partition = cut(2, PartitionConfig(kind="classes", classes_per_client=3))
    assert ((partition.counts > 0).sum(axis=1) == 3).all()
    assert sizes(partition).sum() == 6 * 6000


def test_more_classes_per_client_than_there_are() -> None:
    with pytest.raises(UserError, match="classes_per_client 11; allowed: 1 to 10"):
        cut(5, PartitionConfig(kind="classes", classes_per_client=11))


def test_a_class_smaller_than_its_holders() -> None:
    labels = np.array([0] * 100 + [1])
    with pytest.raises(UserError, match="class 1 has 1 samples for 4 clients"):
        make_partition(
            labels, 4, 2, PartitionConfig(kind="classes", min_samples=1), alpha=1, seed=0
        )


def test_classes_of_uneven_size_can_leave_a_client_short() -> None:
    labels = np.array([0] * 100 + [1] * 5)
    config = PartitionConfig(kind="classes", classes_per_client=1)
    with pytest.raises(UserError, match="gets 5 samples but needs 10"):
        make_partition(labels, 2, 2, config, alpha=1, seed=0)
