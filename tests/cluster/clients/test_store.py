"""The store of updates: keys that name content, files that survive what happens to files."""

import importlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cluster.clients import store as store_module
from cluster.clients.store import Store
from fl.clients import Clients
from fl.data.datasets import Split
from fl.data.own import as_dataset
from fl.events import Events
from fl.exchange import Upload, pack
from fl.executor import InProcess
from fl.federation import Client, Job, Memory, Request, RunSpec
from fl.training.classifier import ClassifierConfig
from fl.training.task import train_by_recipe

RNG = np.random.default_rng(0)
TRAIN = Split(RNG.integers(0, 256, (20, 1, 8, 8), dtype=np.uint8), RNG.integers(0, 3, 20))
JOB = Job(
    task=train_by_recipe,
    client=Client(
        id=0,
        role="classifier",
        training=ClassifierConfig(),
        num_samples=5,
        request=Request(cpus=1, gpus=0),
    ),
    run_spec=RunSpec.of_images((1, 8, 8), num_classes=3, seed=0),
    indices=np.arange(5),
    broadcast=None,
    payload=None,
)


TASK = """import torch
from fl.federation import TaskOutput
def answer(inputs):
    return TaskOutput(tensors={"answer": torch.tensor(["""


def packed() -> Upload:
    import torch

    return Upload(pack({"w": torch.arange(6.0)}, {"seconds": 1.0, "stats": {}}))


def found(store: Store, key: str) -> bytes | None:
    stored = store.get(key, 0)
    return None if stored is None else bytes(stored)


def test_a_named_pipe_in_an_updates_place_is_no_update_and_makes_nobody_wait(
    tmp_path: Path,
) -> None:
    ours = store(tmp_path)
    key = ours.key(JOB)
    for ending in (".safetensors", ".sha256"):
        ours.put(key, 0, packed())
        file = ours.file(key).with_suffix(ending)
        file.unlink()
        os.mkfifo(file)
        assert found(ours, key) is None
    ours.put(key, 0, packed())
    assert found(ours, key) == bytes(packed())


def store(root: Path, run: str = "a") -> Store:
    return Store(root / ".store", root / run / "updates", TRAIN)


def other(**changes: Any) -> Job:
    return replace(JOB, **changes)


@pytest.mark.parametrize(
    "job",
    [
        other(indices=np.arange(6)),
        other(run_spec=replace(JOB.run_spec, seed=1)),
        other(client=replace(JOB.client, id=1)),
        other(client=replace(JOB.client, training=ClassifierConfig(epochs=31))),
        other(client=replace(JOB.client, training=ClassifierConfig(model="cnn"))),
        other(client=replace(JOB.client, request=Request(cpus=2, gpus=0))),
        other(broadcast=b"x"),
        other(payload=b"x"),
        other(round=2),
        other(memory=Memory("x", packed)),
    ],
)
def test_whatever_determines_the_upload_changes_the_key(tmp_path: Path, job: Job) -> None:
    assert store(tmp_path).key(job) != store(tmp_path).key(JOB)


def test_what_all_are_sent_is_hashed_once_and_by_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[bytes] = []

    def counted(content: bytes) -> str:
        hashed.append(content)
        return sha(content)

    sha = store_module._sha
    monkeypatch.setattr(store_module, "_sha", counted)
    ours, one, two = store(tmp_path), b"one" * 9, b"two" * 9
    keys = [ours.key(other(broadcast=sent)) for sent in (one, one, two, two, None, one)]
    assert (hashed.count(one), hashed.count(two)) == (2, 1)
    assert [keys.index(key) for key in keys] == [0, 0, 2, 2, 4, 0]
    assert ours.key(other(broadcast=bytes(bytearray(one)))) == keys[0]


class Shaken:
    """Samples that are seldom changed when they are read: a first reading shows hardly any."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        image = torch.full((1, 8, 8), row / 20)
        return image + self.by * (torch.rand(()) < 1e-6), row % 3


def test_other_transforms_of_a_data_set_object_change_the_key(tmp_path: Path) -> None:
    def key(by: float) -> str:
        train = as_dataset("shaken", Shaken(by)).train
        return Store(tmp_path / ".store", tmp_path / "updates", train).key(JOB)

    assert key(0.1) == key(0.1)
    assert key(0.1) != key(0.2)


def test_domains_change_the_key(tmp_path: Path) -> None:
    def key(*domains: int) -> str:
        train = replace(TRAIN, domains=np.resize(domains, 20))
        return Store(tmp_path / ".store", tmp_path / "updates", train).key(JOB)

    assert len({key(0), key(0, 1), store(tmp_path).key(JOB)}) == 3


def test_what_does_not_determine_it_leaves_the_key(tmp_path: Path) -> None:
    asks_more = replace(JOB.client, request=Request(cpus=0.5, gpus=1), num_samples=6)
    assert store(tmp_path).key(other(client=asks_more)) == store(tmp_path).key(JOB)


def test_same_content_elsewhere_in_the_data_set_has_the_same_key(tmp_path: Path) -> None:
    moved = Split(TRAIN.images[::-1].copy(), TRAIN.labels[::-1].copy())
    there = Store(tmp_path / ".store", tmp_path / "updates", moved)
    assert there.key(other(indices=np.arange(19, 14, -1))) == store(tmp_path).key(JOB)


def test_an_update_is_found_again_by_another_run(tmp_path: Path) -> None:
    key = store(tmp_path).key(JOB)
    assert store(tmp_path).get(key, 0) is None
    store(tmp_path, "a").put(key, 0, packed())
    assert found(store(tmp_path, "b"), key) == bytes(packed())
    for run in ("a", "b"):
        kept = load_file(tmp_path / run / "updates" / "client-00000.safetensors")
        assert kept["w"].tolist() == [0, 1, 2, 3, 4, 5]


def test_the_checksums_time_is_that_of_the_last_use(tmp_path: Path) -> None:
    key = store(tmp_path).key(JOB)
    store(tmp_path).put(key, 0, packed())
    checksum = tmp_path / ".store" / f"{key}.sha256"
    os.utime(checksum, (0, 0))
    began = time.time()
    store(tmp_path, "b").get(key, 0)
    assert checksum.stat().st_mtime > began - 1  # a file system's clock is coarser


def test_a_file_that_is_damaged_or_lost_its_checksum_is_not_used(tmp_path: Path) -> None:
    key = store(tmp_path).key(JOB)
    store(tmp_path).put(key, 0, packed())
    file = tmp_path / ".store" / f"{key}.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert store(tmp_path).get(key, 0) is None
    file.write_bytes(content[: len(content) // 2])
    assert store(tmp_path).get(key, 0) is None
    store(tmp_path).put(key, 0, packed())
    assert found(store(tmp_path), key) == bytes(packed())
    file.with_suffix(".sha256").unlink()
    assert store(tmp_path).get(key, 0) is None


def test_repairing_one_run_leaves_the_others_file_alone(tmp_path: Path) -> None:
    """Files of runs are hard links: a new update must be a new file, not a rewrite."""
    key = store(tmp_path).key(JOB)
    store(tmp_path, "a").put(key, 0, packed())
    before = (tmp_path / "a/updates/client-00000.safetensors").stat().st_ino
    store(tmp_path, "b").put(key, 0, packed())
    assert (tmp_path / "a/updates/client-00000.safetensors").stat().st_ino == before


def test_a_task_of_ones_own_that_was_edited_trains_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "task_of_my_own.py"

    def upload(value: int) -> tuple[float, bool]:
        file.write_text(f"{TASK}{value}.0])}})\n")
        module = importlib.reload(importlib.import_module("task_of_my_own"))
        one = ([JOB.client], [JOB.indices], JOB.run_spec, InProcess(TRAIN))
        (update,) = Clients(*one, store(tmp_path), Events()).map(module.answer)
        return update.tensors["answer"].item(), update.reused

    assert upload(41) == (41.0, False)
    assert upload(41) == (41.0, True)
    assert upload(42) == (42.0, False)


def test_a_later_rounds_update_is_the_runs_own_until_the_round_is_over(tmp_path: Path) -> None:
    here, second = store(tmp_path), other(round=2, broadcast=b"x")
    first_key, key = here.key(JOB), here.key(second)
    here.put(first_key, 0, packed())
    here.put(key, 0, packed())
    assert found(here, key) == bytes(packed())
    assert store(tmp_path, "b").get(key, 0) is None
    here.end_round(2)
    assert here.get(key, 0) is None
    assert found(here, first_key) == bytes(packed())
    here.end_round(1)
    assert found(here, first_key) == bytes(packed())
    left = [path.name for path in (tmp_path / "a" / "updates").iterdir()]
    assert left == ["client-00000.safetensors"]


def test_another_run_of_the_same_settings_is_not_waited_for_where_nothing_is_shared(
    tmp_path: Path,
) -> None:
    ours, theirs = store(tmp_path), store(tmp_path, "b")
    keys = dict(enumerate(ours.key(job) for job in (JOB, other(round=2), other(round=3))))
    with ours.locked(keys) as first, theirs.locked(keys) as second:
        assert (first, second) == ([0, 1, 2], [1, 2])


def test_what_clients_remember_outlives_its_round_and_so_does_the_round_at_work(
    tmp_path: Path,
) -> None:
    """The round after the last one that was saved may be half done when a run is killed."""
    here = store(tmp_path)
    keys = {number: here.key(other(round=number)) for number in (2, 3, 4)}
    for key in keys.values():
        here.put(key, 0, packed())
    here.end_round(3, {keys[2]})
    found = {number: here.get(key, 0) is not None for number, key in keys.items()}
    assert found == {2: True, 3: False, 4: True}
    here.end_round(3)
    assert [path.name for path in (tmp_path / "a" / "updates").glob("round-*")] == ["round-00004"]


@pytest.mark.parametrize("number", [1, 3])
def test_entries_that_were_exchanged_with_their_checksums_are_not_used(
    tmp_path: Path, number: int
) -> None:
    """Of two clients, also what they remember; and of another run's seed."""
    ours = store(tmp_path)
    jobs = [
        other(round=number),
        other(round=number, client=replace(JOB.client, id=1)),
        other(round=number, run_spec=replace(JOB.run_spec, seed=1)),
    ]
    keys = [ours.key(job) for job in jobs]
    for key in keys:
        ours.put(key, 0, packed())
    for key in keys[1:]:
        for ending in (".safetensors", ".sha256"):
            one, two = (ours.file(k).with_suffix(ending) for k in (keys[0], key))
            aside = one.with_suffix(".aside")
            one.rename(aside)
            two.rename(one)
            aside.rename(two)
        assert ours.get(keys[0], 0) is None
        assert ours.get(key, 1) is None
        ours.put(keys[0], 0, packed())
