"""A partition of one's own, as arguments of the command."""

from pathlib import Path

import numpy as np
import pytest

from fl.data.catalogue import REGISTERED, register_dataset
from fl.data.partition_file import read_lists
from onefold.running import partition_arguments


def test_lists_are_kept_under_a_name_made_of_them(tmp_path: Path) -> None:
    lists = [np.array([0, 2]), [1, 3, 4]]
    arguments = partition_arguments(lists, None, tmp_path)
    assert arguments == partition_arguments(lists, None, tmp_path)
    assert arguments != partition_arguments(lists[::-1], None, tmp_path)
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert (options["--partition.kind"], options["--num-clients"]) == ("file", "2")
    train, _ = read_lists(Path(options["--partition.file"]), 2, 5)
    assert [own.tolist() for own in train] == [[0, 2], [1, 3, 4]]


def test_a_partitioner_of_flwr_datasets_cuts_by_the_labels(tmp_path: Path) -> None:
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    labels = np.arange(90) % 3
    register_dataset("own", (np.zeros((90, 1, 8, 8)), labels))
    cut = partitioner.ShardPartitioner(
        num_partitions=3, partition_by="label", num_shards_per_partition=1, shuffle=False
    )
    train = REGISTERED["own"].train
    own = train.labels
    arguments = partition_arguments(cut, (), tmp_path)
    assert arguments[-2:] == ["--num-clients", "3"]
    indices, _ = read_lists(Path(arguments[3]), 3, len(own), train.taken)
    assert sorted(np.concatenate(indices).tolist()) == list(range(len(own)))
    assert all(len(set(own[rows])) <= 2 for rows in indices)
