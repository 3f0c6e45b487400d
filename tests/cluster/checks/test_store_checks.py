"""The store's file system, as it is here and as worse ones are."""

import errno
import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.checks import store_checks
from cluster.checks.check import Result
from cluster.checks.store_checks import CHECKS
from fl.packed import Packed

PAUSE_S = 0.005
"""So long a file system that is not atomic shows what is between, for a busy reader to see."""


def perform(name: str, folder: Path) -> Result:
    (check,) = (check for check in CHECKS if check.name == name)
    result = check.perform(folder / "new" / "runs")
    assert not list(folder.iterdir())
    return result


def refuse(code: int) -> Callable[..., Any]:
    def refused(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refused


@pytest.mark.parametrize("name", ["locks", "atomic rename", "hard links"])
def test_this_file_system_passes(name: str, tmp_path: Path) -> None:
    result = perform(name, tmp_path)
    assert result.status == "passed", result.finding


def test_a_file_system_without_locks_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "fcntl", refuse(errno.ENOLCK))
    result = perform("locks", tmp_path)
    assert (result.status, result.finding) == (
        "failed",
        "two processes were given the same lock at once",
    )
    assert "without nolock" in result.advice


def test_a_second_process_that_cannot_start_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "ended before it could try" in perform("locks", tmp_path).finding


def test_a_file_that_vanishes_while_it_is_replaced_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.replace

    def in_two_steps(source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        time.sleep(PAUSE_S)
        whole(source, target)

    monkeypatch.setattr(os, "replace", in_two_steps)
    result = perform("atomic rename", tmp_path)
    assert result.finding == "a file was missing while it was being replaced"
    assert "crash" in result.advice


def test_a_file_that_is_seen_in_part_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(source: Path, target: Path) -> None:
        content = source.read_bytes()
        target.write_bytes(content[: len(content) // 2])
        time.sleep(PAUSE_S)
        target.write_bytes(content)

    monkeypatch.setattr(os, "replace", copied)
    assert "saw part of a file" in perform("atomic rename", tmp_path).finding


def test_a_file_system_that_cannot_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store_checks.write_atomically
    monkeypatch.setattr(store_checks, "REPLACED", 1)
    written: list[Path] = []

    def once(path: Path, content: bytes) -> None:
        if written:
            refuse(errno.EXDEV)()
        written.append(path)
        write(path, content)

    monkeypatch.setattr(store_checks, "write_atomically", once)
    assert perform("atomic rename", tmp_path).finding.startswith("OSError: [Errno 18]")


def test_a_file_system_without_hard_links_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    result = perform("hard links", tmp_path)
    assert "copy each update" in result.finding
    assert "its space twice" in result.advice


def test_an_update_that_reads_back_otherwise_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = Packed.in_memory(b"less than was written")
    monkeypatch.setattr(Packed, "in_file", lambda path: cut)
    assert "does not read back" in perform("hard links", tmp_path).finding


def test_a_folder_that_cannot_be_made_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for check in CHECKS:
        result = check.perform(tmp_path / "file")
        assert result.status == "failed"
        assert result.finding.startswith("NotADirectoryError")
