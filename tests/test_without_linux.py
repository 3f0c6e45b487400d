"""A system without what only Linux has, as macOS is: all runs in process, or says what is missing.

Linux's own calls and files are taken away from this process, so what a Mac lacks beside them is not
seen here.
"""

import fcntl
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster import doctor, launch, study
from cluster.hardware.private_ray import prepare_environment
from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from fl.errors import UserError
from fl.report.page import write_report
from onefold import runs
from slurm import status
from tests.cluster.commands import SMALL
from tests.undrawn import WRITE_REPORT, draw_nothing

CALLS = ("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "pidfd_open")
FILES = ("/proc", "/sys", "/dev/shm")


def absent(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, for which Linux's own files are not there."""

    def instead(path: Any = ".", *more: Any, **named: Any) -> Any:
        name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if str(name).startswith(FILES):
            raise FileNotFoundError(2, "No such file or directory", str(name))
        return call(path, *more, **named)

    return instead


@pytest.fixture(autouse=True)
def no_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CALLS:
        monkeypatch.delattr(os, name, raising=False)
    for name in ("F_OFD_SETLK", "F_OFD_SETLKW"):
        monkeypatch.delattr(fcntl, name, raising=False)
    for module, name in (
        (io, "open"),
        *((os, n) for n in ("stat", "listdir", "scandir", "statvfs")),
    ):
        monkeypatch.setattr(module, name, absent(getattr(module, name)))
    monkeypatch.setattr(sys, "platform", "darwin")


def test_a_run_in_process_and_what_looks_at_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WRITE_REPORT, draw_nothing)  # it is drawn once, below
    where = [f"--output-dir={tmp_path}"]
    asked = [*SMALL, *where, "--num-clients=2", "--runtime=inprocess", "--name=run"]
    assert launch.main([*asked, "--dry-run"]) == 0
    assert launch.main(asked) == 0
    assert launch.main([*asked, "--overwrite"]) == 0  # the lock was given up
    assert status.main(where) == 2  # none was sent to Slurm
    assert "was sent to Slurm" in capsys.readouterr().err
    assert runs.main(["ls", *where]) == 0
    assert write_report(tmp_path / "run").exists()
    assert not capsys.readouterr().err


def test_what_needs_linux_says_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"--output-dir={tmp_path}"
    assert launch.main([*SMALL, where]) == 2
    assert capsys.readouterr().err == (
        "onefold: clients and trials on Ray need Linux; on this system use onefold run "
        "--runtime inprocess\n"
    )
    assert study.main(["--num-clients=2", "--runtime=inprocess", where]) == 2
    assert capsys.readouterr().err.startswith("onefold: a study measures memory by what Linux")
    with pytest.raises(UserError, match="need Linux"):
        prepare_environment()
    with pytest.raises(UserError, match="need Linux"):
        prepare(parse(SMALL))


def test_the_doctor_checks_what_runs_in_process_and_says_that_ray_needs_linux(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        """The tiny federation, in this process, which has nothing of Linux."""
        doctor.overspending_run(command[command.index(doctor.TINY) + 1 :])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert doctor.main([f"--output-dir={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert "need Linux" in " ".join(said.split())
    assert "inprocess" in said
