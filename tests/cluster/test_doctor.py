"""The doctor as a user calls it: once for real, and on machines that something is wrong with."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.doctor import main

CHECKS = [
    *("GPUs", "locks", "atomic rename", "hard links", "Ray", "shared device", "distance filter"),
    *("memory cap", "fit over ranks", "NCCL"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("doctor")


@pytest.fixture(scope="module")
def done(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cluster.doctor", f"--output-dir={folder / 'runs'}"]
    return subprocess.run(
        [*command, f"--json={folder / 'doctor.json'}"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "COLUMNS": "80"},
        check=False,
    )


@pytest.mark.slow
def test_this_machine_is_fit(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads((folder / "doctor.json").read_text())
    assert told["fit"] is True
    assert [check["name"] for check in told["checks"]] == CHECKS
    status = {check["name"]: check["status"] for check in told["checks"]}
    gpus = told["found"]["machine"]["gpus"]
    left_out = {0: {"GPUs", "NCCL"}, 1: {"NCCL"}}.get(len(gpus), set())
    assert {name for name, found in status.items() if found == "skipped"} == left_out
    assert set(status.values()) <= {"passed", "skipped"}
    assert told["found"]["versions"]["ray"]
    assert told["found"]["output_dir"]["folder"] == str(folder / "runs")


@pytest.mark.slow
def test_it_fits_a_terminal_and_ends_with_the_verdict(
    done: subprocess.CompletedProcess[str],
) -> None:
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].startswith("fit: ")
    heading = next(i for i, line in enumerate(lines) if line.startswith("check "))
    assert [line.split("  ")[0] for line in lines[heading + 1 :] if line[:1].strip()][:-1] == CHECKS


@pytest.mark.slow
def test_it_leaves_nothing_but_the_file_that_was_asked_for(
    done: subprocess.CompletedProcess[str], folder: Path
) -> None:
    assert done.stderr == ""
    assert [file.name for file in folder.iterdir()] == ["doctor.json"]


def test_a_machine_that_is_not_fit_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(os, "link", refuse)
    told = tmp_path / "doctor.json"
    arguments = [f"--output-dir={tmp_path}", f"--json={told}", "--ray-address=127.0.0.1:1"]
    assert main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    said = " ".join(" ".join(lines).split())
    assert "2 of 6 checks failed: hard links, Ray" in said
    advice = said[said.index("what to do") :]
    assert "put --output-dir on a file system with hard links" in advice
    assert "--ray-address must name a cluster" in advice
    assert json.loads(told.read_text())["fit"] is False


def test_a_machine_that_cannot_be_looked_at_is_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Path) -> None:
        raise PermissionError("the folder is closed")

    monkeypatch.setattr("cluster.doctor.look_around", broken)
    assert main([]) == 1
    said = capsys.readouterr().err
    assert said == "not fit: cannot look around: PermissionError: the folder is closed\n"


def test_an_interrupted_examination_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cluster.doctor.run_checks", interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--jsn=x", "unknown option '--jsn' (did you mean --json?)"),
        ("--json=/no/such/folder/x", "json must be in a directory that exists"),
        ("--ray-address=x", "ray_address must be HOST:PORT, got 'x'"),
    ],
)
def test_bad_usage_is_one_line(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "--ray-address" in capsys.readouterr().out
