"""Runs that need the same updates at the same moment: each is trained once, whoever dies."""

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cluster.clients.locks import Locks
from cluster.clients.store import Store
from fl.clients import Clients
from fl.events import Events
from fl.exchange import Upload
from fl.executor import InProcess
from fl.federation import TaskInput, TaskOutput
from tests.fl.toy import PROBLEM, Told, client, into, split
from tests.waiting import wait_until

FORK = multiprocessing.get_context("fork")
IDS = range(4)
TRAIN = split(4, 4)


def slow(inputs: TaskInput) -> TaskOutput:
    """Logs each training, and takes a while; one process dies of client 1."""
    if inputs.client.id == 1 and multiprocessing.current_process().name == "dying":
        os.kill(os.getpid(), signal.SIGKILL)
    logging.getLogger("trainings").warning("%d", inputs.client.id)
    time.sleep(0.2)
    return TaskOutput(tensors={"id": torch.tensor([inputs.client.id])}, stats={"train_loss": 0.0})


def federation(root: Path, run: str, heard: list[Told]) -> Clients:
    store = Store(root / ".store", root / run / "updates", TRAIN)
    indices = [np.array([k, k + 1]) for k in IDS]
    members = [client(k) for k in IDS]
    return Clients(members, indices, PROBLEM, InProcess(TRAIN), store, Events(into(heard)))


def collect(root: Path, run: str, answers: Any) -> None:
    heard: list[Told] = []
    updates = federation(root, run, heard).map(slow)
    reused = [e["client"] for e in heard if e["event"] == "client_end" and e["reused"]]
    answers.put((run, [u.tensors["id"].item() for u in updates], len(reused)))


@pytest.fixture
def trainings(tmp_path: Path) -> Iterator[Path]:
    handler = logging.FileHandler(tmp_path / "trainings")
    logging.getLogger("trainings").addHandler(handler)
    yield tmp_path / "trainings"
    logging.getLogger("trainings").removeHandler(handler)
    handler.close()


def start(root: Path, run: str, answers: Any) -> Any:
    process = FORK.Process(target=collect, args=(root, run, answers), name=run)
    process.start()
    return process


@pytest.mark.process
def test_three_runs_at_once_train_each_client_once(tmp_path: Path, trainings: Path) -> None:
    answers = FORK.Queue()
    processes = [start(tmp_path, run, answers) for run in "abc"]
    told = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    assert sorted(trainings.read_text().split()) == list("0123")
    assert all(ids == [0, 1, 2, 3] for _, ids, _ in told)
    assert sum(reused for _, _, reused in told) == 8
    for run in "abc":  # each run's directory is complete by itself
        assert len(list((tmp_path / run / "updates").iterdir())) == 4


@pytest.mark.process
def test_who_is_killed_holds_up_nobody(tmp_path: Path, trainings: Path) -> None:
    answers = FORK.Queue()
    dying = start(tmp_path, "dying", answers)
    wait_until(trainings.read_text)  # the first training has begun
    waiting = start(tmp_path, "waiting", answers)
    assert answers.get() == ("waiting", [0, 1, 2, 3], 1)
    for process in (dying, waiting):
        process.join()
    assert dying.exitcode == -signal.SIGKILL
    assert sorted(trainings.read_text().split()) == list("0123")


def test_what_one_run_has_claimed_is_left_out_for_another(tmp_path: Path) -> None:
    one, two = (Store(tmp_path / ".store", tmp_path / run, TRAIN) for run in "ab")
    with one.locked({0: "x", 1: "y"}) as ours:
        assert ours == [0, 1]
        with two.locked({1: "y", 2: "z"}) as theirs:
            assert theirs == [2]
        one.put("y", 1, Upload(b"update"))
        with two.locked({1: "y"}) as theirs:  # given up as soon as it was kept
            assert theirs == [1]
            found = two.get("y", 1)
            assert found is not None
            assert bytes(found) == b"update"


def test_thousands_are_claimed_at_once_in_one_file(tmp_path: Path) -> None:
    one, two = (Store(tmp_path / ".store", tmp_path / run, TRAIN) for run in "ab")
    keys = {k: f"key {k}" for k in range(2000)}
    with one.locked(keys) as ours:
        assert ours == list(keys)
        with two.locked({**keys, 2000: "another"}) as theirs:
            assert theirs == [2000]
    with two.locked(keys) as theirs:
        assert theirs == list(keys)
    assert [path.name for path in (tmp_path / ".store").iterdir()] == [".locks"]


def test_a_failure_gives_up_all_claims(tmp_path: Path) -> None:
    one, two = (Store(tmp_path / ".store", tmp_path / run, TRAIN) for run in "ab")
    with pytest.raises(RuntimeError), one.locked({0: "x"}):
        raise RuntimeError
    with two.locked({0: "x"}) as ours:
        assert ours == [0]


@pytest.mark.process
def test_on_another_system_than_linux_a_lock_is_held_until_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    ours = Locks(tmp_path / "locks")
    found = FORK.Queue()

    def attempt() -> None:
        found.put(Locks(tmp_path / "locks").acquire("one"))

    for change, free in ((ours.acquire, False), (ours.release, True)):
        change("one")
        other = FORK.Process(target=attempt)
        other.start()
        assert found.get() is free
        other.join()
