"""One process at a time in a run's directory, whoever dies, and two that race for one name."""

import multiprocessing
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.clients.locks import Locks
from cluster.run.command_line import parse
from cluster.run.options import Launch
from cluster.run.run_dir import LOCK, claim, claimed, locked
from fl.errors import UserError

FORK = multiprocessing.get_context("fork")


def options(tmp_path: Path, *arguments: str) -> Launch:
    return parse([f"--output-dir={tmp_path}", *arguments])


def compete(launch: Launch, start: Any, over: Any, answers: Any) -> None:
    start.wait()
    try:
        with claimed(launch) as path:
            answers.put(path.name)
            over.wait()
    except UserError as error:
        answers.put(str(error))
        over.wait()


def race(*launches: Launch) -> list[str]:
    """What processes that start at one moment are told: the directory's name, or the refusal."""
    start, over, answers = FORK.Barrier(len(launches)), FORK.Event(), FORK.Queue()
    competing = [
        FORK.Process(target=compete, args=(launch, start, over, answers)) for launch in launches
    ]
    for process in competing:
        process.start()
    told = [answers.get(timeout=30) for _ in competing]
    over.set()
    for process in competing:
        process.join(30)
    return told


@pytest.mark.parametrize("how", ["new", "--resume", "--overwrite"])
def test_of_processes_that_race_for_one_name_exactly_one_gets_it(tmp_path: Path, how: str) -> None:
    for turn in range(2):
        ask = [f"--name=r{turn}"]
        if how != "new":
            kept = claim(options(tmp_path, *ask)) / "kept"
            kept.touch()
            ask.append(how)
        told = race(*[options(tmp_path, *ask)] * 3)
        assert told.count(f"r{turn}") == 1, told
        losers = [line for line in told if line != f"r{turn}"]
        assert all("in use by" in line or "holds another run" in line for line in losers), told
        assert all("\n" not in line for line in losers)
        if how == "--resume":
            assert kept.exists()
    assert {path.name for path in tmp_path.iterdir()} == {f"r{turn}" for turn in range(2)}


def test_a_made_name_that_is_taken_gets_the_next_number_also_in_a_race(tmp_path: Path) -> None:
    told = race(*[options(tmp_path)] * 4)
    base = "fedmho-sd-digits-alpha0.5-k10-seed0"
    assert sorted(told) == [base, *(f"{base}-{n}" for n in (2, 3, 4))]


@pytest.mark.parametrize("how", ["--resume", "--overwrite"])
def test_the_loser_is_told_who_has_it_and_changes_nothing(tmp_path: Path, how: str) -> None:
    with claimed(options(tmp_path, "--name=a")) as path:
        (path / "work").touch()
        before = {p.name: p.read_bytes() for p in path.iterdir()}
        said = rf"in use by process {os.getpid()} on {socket.gethostname()}, since 20\d\d-"
        with pytest.raises(UserError, match=said):
            claim(options(tmp_path, "--name=a", how))
        assert {p.name: p.read_bytes() for p in path.iterdir()} == before
    assert claim(options(tmp_path, "--name=a", how)) == path


def hold(path: Path, ready: Any) -> None:
    with locked(path):
        ready.set()
        time.sleep(60)


def test_who_is_killed_leaves_the_run_to_the_next_at_once(tmp_path: Path) -> None:
    path, ready = claim(options(tmp_path, "--name=a")), FORK.Event()
    holder = FORK.Process(target=hold, args=(path, ready))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(UserError, match=f"in use by process {holder.pid} on"):
        claim(options(tmp_path, "--name=a", "--resume"))
    holder.kill()
    holder.join(30)
    assert claim(options(tmp_path, "--name=a", "--resume")) == path


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b"[" * 4000, b'{"host": "a\\nb"}'])
def test_what_the_lock_says_is_not_believed_unseen(tmp_path: Path, content: bytes) -> None:
    with locked(tmp_path):
        (tmp_path / LOCK).write_bytes(content)
        with pytest.raises(UserError, match="in use by another process;"), locked(tmp_path):
            pass


def test_without_locks_it_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Locks, "_set", refuse)
    with locked(tmp_path):
        pass
    (line,) = capsys.readouterr().err.splitlines()
    assert "there are no locks where" in line


def test_a_name_whose_run_could_not_be_written_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "config.yaml")

    monkeypatch.setattr("cluster.run.run_dir.write_atomically", full)
    with pytest.raises(UserError, match="No space left on device; make room"):
        claim(options(tmp_path, "--name=a"))
    assert not list(tmp_path.iterdir())
