"""onefold store."""

import os
import time
from pathlib import Path

import pytest

from cluster.clients.locks import Locks
from cluster.run.run_dir import locked
from fl.command import run_command
from onefold import store
from onefold.store import command, stored_in

OLD, NEW = "a" * 64, "b" * 64
DAY_S = 86_400


def main(arguments: list[str]) -> int:
    return run_command(command, "onefold store", arguments)


def put(pool: Path, key: str, days: float) -> None:
    """An upload as the store keeps it, last read so many days ago and written long before."""
    for ending, content, age in (("safetensors", b"x" * 936, 1000.0), ("sha256", b"y" * 64, days)):
        file = pool / f"{key}.{ending}"
        file.write_bytes(content)
        os.utime(file, (0, time.time() - age * DAY_S))


def work(folder: Path, name: str, days: float) -> Path:
    """The folder of a run that began so many days ago."""
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    os.utime(run / "config.yaml", (0, time.time() - days * DAY_S))
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / ".store").mkdir()
    put(tmp_path / ".store", OLD, 40)
    put(tmp_path / ".store", NEW, 2)
    return tmp_path


def left(runs: Path) -> set[str]:
    return {upload.key for upload in stored_in(runs / ".store")}


def prune(runs: Path, days: str) -> int:
    return main(["--output-dir", str(runs), "--prune", days, "--yes"])


def test_it_tells_files_bytes_and_age(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output-dir", str(runs)]) == 0
    said = "2 uploads in 4 files, 2.0 kB, last used 2 days to 40 days ago\n"
    assert capsys.readouterr().out == f"{runs}/.store: {said}"


def test_an_empty_store_has_no_uploads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".store").mkdir()
    assert main(["--output-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/.store: no uploads\n"
    assert prune(tmp_path, "1") == 0


def test_prune_deletes_what_no_run_has_used_for_so_long(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prune(runs, "41") == 0
    assert left(runs) == {OLD, NEW}
    assert main(["--output-dir", str(runs), "--prune", "30"]) == 2
    said = f"would delete from {runs}/.store 1 upload in 2 files, 1.0 kB, last used 40 days"
    assert said in capsys.readouterr().err
    assert left(runs) == {OLD, NEW}
    assert prune(runs, "30") == 0
    assert capsys.readouterr().out.startswith(f"deleted from {runs}/.store: 1 upload in 2 files")
    assert left(runs) == {NEW}
    assert prune(runs, "0") == 0
    assert left(runs) == set()


def test_prune_takes_what_a_killed_process_left_and_nothing_foreign(runs: Path) -> None:
    pool, key = runs / ".store", "c" * 64
    for name in (f".{key}.safetensors.123", "notes.txt", f"{key}.txt"):
        (pool / name).touch()
        os.utime(pool / name, (0, 0))
    (pool / "folder").mkdir()
    assert prune(runs, "30") == 0
    assert sorted(file.name for file in pool.iterdir()) == [
        ".locks",
        f"{NEW}.safetensors",
        f"{NEW}.sha256",
        f"{key}.txt",
        "folder",
        "notes.txt",
    ]


def test_what_a_process_has_locked_stays(runs: Path) -> None:
    locks = Locks(runs / ".store" / ".locks")
    assert locks.acquire(OLD)
    assert prune(runs, "1") == 0
    assert left(runs) == {OLD}
    locks.release(OLD)
    assert prune(runs, "1") == 0
    assert left(runs) == set()


@pytest.mark.parametrize("name", ["run", "sweep/trials/00001"])
def test_what_a_run_at_work_may_have_used_stays(runs: Path, name: str) -> None:
    run = work(runs, name, days=3)
    with locked(run):
        assert prune(runs, "1") == 0
        assert left(runs) == {NEW}
    assert prune(runs, "1") == 0
    assert left(runs) == set()


def test_what_is_used_after_it_was_chosen_stays(runs: Path) -> None:
    chosen = stored_in(runs / ".store")
    os.utime(runs / ".store" / f"{OLD}.sha256")
    assert [upload.key for upload in store.delete(runs / ".store", chosen)] == [NEW]
    assert left(runs) == {OLD}


@pytest.mark.parametrize("days", ["-1", "nan", "inf", "40000", "soon"])
def test_days_that_are_none_are_one_line(
    runs: Path, days: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prune(runs, days) == 2
    said = capsys.readouterr().err
    assert said.startswith("onefold: ")
    assert said.count("\n") == 1
    assert left(runs) == {OLD, NEW}


def test_a_folder_without_store_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output-dir", str(tmp_path)]) == 2
    assert f"there is no store in {tmp_path}" in capsys.readouterr().err
