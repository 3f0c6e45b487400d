"""A partition as a file, and all that can be wrong with one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl.data.partition import PartitionConfig, make_partition
from fl.data.partition_file import read_lists, save_lists
from fl.errors import UserError

LABELS = np.arange(20) % 3
TRAIN, TEST = [np.array([3, 1]), np.array([7, 5, 9])], [np.array([0]), np.array([], np.int64)]


def test_lists_come_back_sorted(tmp_path: Path) -> None:
    save_lists(tmp_path / "p.npz", TRAIN, TEST)
    train, test = read_lists(tmp_path / "p.npz", 2, 20)
    assert [own.tolist() for own in train] == [[1, 3], [5, 7, 9]]
    assert [own.tolist() for own in test] == [[0], []]


def test_of_a_part_those_samples_are_taken_that_are_in_it(tmp_path: Path) -> None:
    taken = np.array([9, 1, 5]), 20
    save_lists(tmp_path / "p.npz", TRAIN, TEST, 20)
    (tmp_path / "p.json").write_text(json.dumps([own.tolist() for own in TRAIN]))
    for name in ("p.npz", "p.json"):
        train, _ = read_lists(tmp_path / name, 2, 3, taken)
        assert [own.tolist() for own in train] == [[1], [0, 2]]
    with pytest.raises(UserError, match="gives client 0 no training sample"):
        read_lists(tmp_path / "p.npz", 2, 2, (np.array([9, 5]), 20))
    with pytest.raises(UserError, match=r"is for \[20\] training samples; there are 30"):
        read_lists(tmp_path / "p.npz", 2, 3, (taken[0], 30))


def test_a_run_with_the_file_of_another_has_its_partition(tmp_path: Path) -> None:
    config = PartitionConfig(test_fraction=0.2)
    first = make_partition(LABELS.repeat(20), 3, 3, config, alpha=0.5, seed=0)
    save_lists(tmp_path / "p.npz", first.train, first.test)
    again = PartitionConfig(kind="file", file=str(tmp_path / "p.npz"))
    second = make_partition(LABELS.repeat(20), 3, 3, again, alpha=9.0, seed=7)
    assert second.digest == first.digest
    assert np.array_equal(second.counts, first.counts)
    same, other = (replace(again, test_fraction=share) for share in (0.2, 0.5))
    third = make_partition(LABELS.repeat(20), 3, 3, same, alpha=9.0, seed=7, tested=True)
    assert third.digest == first.digest
    with pytest.raises(UserError, match=r"0\.5: the clients have test samples already, another"):
        make_partition(LABELS.repeat(20), 3, 3, other, alpha=9.0, seed=7)


def test_a_json_list_for_each_client_and_a_share_held_out(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps([list(range(10)), list(range(10, 20))]))
    config = PartitionConfig(kind="file", file=str(tmp_path / "p.json"), test_fraction=0.2)
    found = make_partition(LABELS, 2, 3, config, alpha=0.5, seed=0)
    assert [len(own) for own in found.train] == [8, 8]
    assert all((own < 10).all() for own in (found.train[0], found.test[0]))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("[[0], [1], [2]]", "has 3 clients, but num_clients is 2"),
        ("[[0], [20]]", "gives client 1 sample 20; the training split has 0 to 19"),
        ("[[0], [-1]]", "gives client 1 sample -1"),
        ("[[0, 1], [1]]", "gives sample 1 to client 0 and to client 1"),
        ("[[0, 0], [1]]", "gives sample 0 to client 0 and to client 0"),
        ("[[0], []]", "gives client 1 no training sample"),
        ("[[0], [1.5]]", "client 1 must be a list of whole numbers"),
        ("[[0], [[1]]]", "must be a list of whole numbers"),
        ('{"a": 1}', "expected a list of indices for each client"),
        ("[", "cannot read"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, content: str, line: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(UserError, match=line) as caught:
        read_lists(tmp_path / "p.json", 2, 20)
    assert "\n" not in str(caught.value)


def test_counts_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "p.npz",
        **{"train": np.arange(5), "train_counts": np.array([2, 2])},
        **{"test": np.arange(0), "test_counts": np.array([0, 0]), "samples": np.array([20])},
    )
    with pytest.raises(UserError, match="train_counts must add up to the length of train, 5"):
        read_lists(tmp_path / "p.npz", 2, 20)


def test_a_file_that_is_none_and_settings_that_do_not_go_together(tmp_path: Path) -> None:
    (tmp_path / "p.npz").write_bytes(b"no archive")
    for path in ("p.npz", "none.npz"):
        with pytest.raises(UserError, match="cannot read"):
            read_lists(tmp_path / path, 2, 20)
    for wrong in ({"kind": "file"}, {"file": "p.npz"}):
        with pytest.raises(UserError, match="kind file and the setting file need each other"):
            PartitionConfig(**wrong)  # type: ignore[arg-type]


def test_a_byte_order_mark_as_windows_writes_it_is_no_content(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("[[0], [1]]", encoding="utf-8-sig")
    assert [own.tolist() for own in read_lists(tmp_path / "p.json", 2, 20)[0]] == [[0], [1]]
