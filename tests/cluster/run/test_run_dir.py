"""Claiming, resuming, naming, emptying and deleting run directories."""

import multiprocessing
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.clients.locks import Locks
from cluster.run.command_line import LONGEST_BYTES, check_run_name, parse
from cluster.run.options import Launch
from cluster.run.run_dir import (
    LOCK,
    claim,
    claimed,
    delete,
    empty,
    is_run,
    locate,
    locked,
    versions,
)
from fl.errors import UserError
from fl.json_files import read_json, write_json


def options(tmp_path: Path, *arguments: str) -> Launch:
    return parse([f"--output-dir={tmp_path}", *arguments])


def test_claim_writes_the_whole_configuration_and_versions(tmp_path: Path) -> None:
    run_dir = claim(options(tmp_path, "--name=a", "--keep=0.5"))
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert (config["keep"], config["fusion"]["epochs"]) == (0.5, 15)
    assert config["versions"]["torch"] == versions()["torch"] != "not installed"


def test_a_named_run_is_never_taken_over(tmp_path: Path) -> None:
    claim(options(tmp_path, "--name=a"))
    with pytest.raises(UserError, match="holds another run: --resume continues it"):
        claim(options(tmp_path, "--name=a"))


def test_a_made_name_is_free_or_gets_the_next_number(tmp_path: Path) -> None:
    first, second = claim(options(tmp_path)), claim(options(tmp_path))
    assert first.name == "fedmho-sd-digits-alpha0.5-k10-seed0"
    assert second.name == f"{first.name}-2"
    assert locate(options(tmp_path, "--resume")) == second
    assert locate(options(tmp_path, "--overwrite")) == second
    assert locate(options(tmp_path, "--seed=1")).name.endswith("seed1")
    without_alpha = options(tmp_path, "--partition.kind=iid")
    assert locate(without_alpha).name == "fedmho-sd-digits-iid-k10-seed0"
    assert without_alpha.run.skew is None


def test_resume_takes_the_same_configuration_up(tmp_path: Path) -> None:
    run_dir = claim(options(tmp_path, "--name=a"))
    (run_dir / "kept").touch()
    assert claim(options(tmp_path, "--name=a", "--resume")) == run_dir
    assert (run_dir / "kept").exists()


def test_resume_refuses_a_changed_configuration_and_shows_it(tmp_path: Path) -> None:
    claim(options(tmp_path, "--name=a"))
    message = r"another configuration: alpha: 0.5 -> 0.1, fusion.lr: 0.0005 -> 0.1"
    with pytest.raises(UserError, match=message):
        claim(options(tmp_path, "--name=a", "--resume", "--alpha=0.1", "--fusion.lr=0.1"))


def test_a_configuration_may_come_through_a_pipe_which_is_read_once(tmp_path: Path) -> None:
    reading, writing = os.pipe()  # as of a shell's <(command)
    os.write(writing, b"alpha: 0.3")
    os.close(writing)
    assert options(tmp_path, f"--config=/dev/fd/{reading}").run.alpha == 0.3
    os.close(reading)


def test_resume_where_nothing_is_starts_anew(tmp_path: Path) -> None:
    assert claim(options(tmp_path, "--name=a", "--resume")).is_dir()


def test_overwrite_replaces_the_run(tmp_path: Path) -> None:
    run_dir = claim(options(tmp_path, "--name=a"))
    (run_dir / "old").touch()
    claim(options(tmp_path, "--name=a", "--overwrite", "--alpha=0.1"))
    assert not (run_dir / "old").exists()


def test_who_is_killed_while_it_writes_the_first_file_leaves_the_name_free(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".config.yaml.123").write_text("method: fed")
    assert is_run(claim(options(tmp_path, "--name=a", "--resume")))


@pytest.mark.parametrize("how", ["delete", "overwrite"])
def test_who_is_killed_amid_a_deletion_leaves_a_run_that_can_be_deleted(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = claim(options(tmp_path, "--name=a"))
    for number in range(20):  # in any order, by the file system
        (run_dir / f"{number}").mkdir()
    remove, was_a_run = shutil.rmtree, []

    def seen(folder: Path) -> None:
        remove(folder)
        if folder != run_dir:
            was_a_run.append(is_run(run_dir))

    monkeypatch.setattr(shutil, "rmtree", seen)
    if how == "delete":
        delete([run_dir])
    else:
        claim(options(tmp_path, "--name=a", "--overwrite"))
    assert was_a_run == [True] * 20


def test_overwrite_never_deletes_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").touch()
    for extra in ([], ["--overwrite"], ["--resume"]):
        with pytest.raises(UserError, match="files but no run"):
            claim(options(tmp_path, "--name=a", *extra))
    assert (tmp_path / "a" / "thesis.tex").exists()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(UserError, match="is a file"):
        claim(options(tmp_path, "--name=a"))


def test_a_list_of_whole_numbers_takes_one_line_and_is_read_back_the_same(tmp_path: Path) -> None:
    value = {"confusion": [[12, 0], [-3, 4]], "text": "[\n 1,\n 2\n]", "mixed": [1, 2.5, []]}
    write_json(tmp_path / "r.json", value)
    text = (tmp_path / "r.json").read_text()
    assert read_json(tmp_path / "r.json") == value
    assert "    [12, 0],\n    [-3, 4]\n" in text


def make(path: Path, config: str = "method: fedmho\nversions: {}\n") -> Path:
    path.mkdir()
    (path / "config.yaml").write_text(config)
    return path


@pytest.mark.parametrize("config", ["", "[1", "- method", "method: fedmho\n", "[" * 9000, "\0"])
def test_a_folder_with_another_config_is_no_run_and_stays(tmp_path: Path, config: str) -> None:
    run, other = make(tmp_path / "run"), make(tmp_path / "other", config)
    assert is_run(run)
    assert not is_run(other)
    with pytest.raises(UserError, match="not a run's folder"):
        delete([run, other])
    assert run.exists()
    assert other.exists()


def test_a_link_to_a_run_is_no_run(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(UserError, match="not a run's folder"):
        delete([tmp_path / "link"])
    assert run.exists()


def test_emptying_keeps_the_lock_and_what_links_point_to(tmp_path: Path) -> None:
    run, kept = make(tmp_path / "run"), make(tmp_path / "kept")
    (run / "model").mkdir()
    (run / "link").symlink_to(kept)
    with locked(run):
        empty(run)
        assert [path.name for path in run.iterdir()] == [LOCK]
    assert (kept / "config.yaml").exists()


@pytest.mark.parametrize("name", ["a", "a b", "größe=3,ö", "x" * LONGEST_BYTES, "[red]", "a..b"])
def test_any_plain_name_is_taken(name: str) -> None:
    check_run_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", ".", "..", "../x", "/x", "a/b", "a/../b", ".store", "[/x]"),
        *("a\nb", "a\0b", "\x1b[1m", "x" * (LONGEST_BYTES + 1), "ä" * LONGEST_BYTES, "\udcff"),
    ],
)
def test_what_is_no_folder_of_its_own_is_refused_in_a_line(name: str) -> None:
    with pytest.raises(UserError, match="name must be a folder name") as refusal:
        check_run_name(name)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 400


# One process at a time in a run's directory, whoever dies, and two that race for one name.


FORK = multiprocessing.get_context("fork")


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
    told = [answers.get() for _ in competing]
    over.set()
    for process in competing:
        process.join()
    return told


@pytest.mark.process
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


@pytest.mark.process
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
        time.sleep(3600)


@pytest.mark.process
def test_who_is_killed_leaves_the_run_to_the_next_at_once(tmp_path: Path) -> None:
    path, ready = claim(options(tmp_path, "--name=a")), FORK.Event()
    holder = FORK.Process(target=hold, args=(path, ready))
    holder.start()
    ready.wait()
    with pytest.raises(UserError, match=f"in use by process {holder.pid} on"):
        claim(options(tmp_path, "--name=a", "--resume"))
    holder.kill()
    holder.join()
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
