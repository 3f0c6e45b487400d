"""The doctor as a user calls it: once for real, and on machines that something is wrong with."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import doctor
from cluster.doctor import look_around, main, verdict
from cluster.doctor_checks import ADVICE, Result
from tests.cluster.fake_driver import CARDS, pretend

PASSED = Result(name="federation", status="passed", seconds=3.21, finding="clients trained")
SKIPPED = Result(name="memory cap", status="skipped", finding="Ray is not installed")
FAILED = Result(name="lock", status="failed", finding="two got it", advice="use locks")


def examined(monkeypatch: pytest.MonkeyPatch, *results: Result | BaseException) -> None:
    """Has the doctor get these results, or be interrupted, in place of making checks."""

    def checks(*_: object) -> Iterator[Result]:
        for result in results:
            if isinstance(result, BaseException):
                raise result
            yield result

    monkeypatch.setattr(doctor, "run_checks", checks)


@pytest.mark.slow
def test_this_machine_is_fit(tmp_path: Path) -> None:
    where = [f"--output-dir={tmp_path / 'runs'}", f"--json={tmp_path / 'doctor.json'}"]
    done = subprocess.run(
        [sys.executable, "-m", "cluster.doctor", *where],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "COLUMNS": "80"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].startswith("fit: ")
    found: dict[str, Any] = json.loads((tmp_path / "doctor.json").read_text())
    assert (found["fit"], found["verdict"]) == (True, lines[-1])
    assert {check["name"] for check in found["checks"]} == ADVICE.keys()
    assert {check["status"] for check in found["checks"]} == {"passed"}, found
    findings = {check["name"]: check["finding"] for check in found["checks"]}
    assert findings["federation"].startswith("3 clients trained")
    assert [file.name for file in tmp_path.iterdir()] == ["doctor.json"]


def test_what_failed_comes_with_advice_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examined(monkeypatch, PASSED, SKIPPED, FAILED)
    file = tmp_path / "doctor.json"
    assert main([f"--json={file}"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "federation       passed     3.2 s  clients trained" in lines
    assert lines[-2] == "not fit: 1 of 2 checks failed: lock"
    assert lines[-1].split() == ["lock", "use", "locks"]
    found = json.loads(file.read_text())
    assert found["fit"] is False
    assert found["checks"][2] == {
        **{"name": "lock", "status": "failed", "seconds": 0.0},
        **{"finding": "two got it", "advice": "use locks"},
    }
    assert "cores" in found["found"]


def test_a_skipped_check_does_not_make_a_machine_unfit() -> None:
    assert verdict([PASSED, SKIPPED]) == "fit: 1 checks passed, 1 skipped"


def test_what_was_known_before_an_interrupt_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examined(monkeypatch, PASSED, KeyboardInterrupt())
    file = tmp_path / "doctor.json"
    assert main([f"--json={file}"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    found = json.loads(file.read_text())
    assert (found["fit"], found["verdict"], len(found["checks"])) == (None, "unfinished", 1)


def test_a_machine_that_cannot_be_looked_at_is_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Path) -> None:
        raise PermissionError("the folder is closed")

    monkeypatch.setattr(doctor, "look_around", broken)
    assert main([]) == 1
    said = capsys.readouterr().err
    assert said == "not fit: cannot look around: the folder is closed\n"


def test_gpus_their_driver_and_the_job_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, *CARDS)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    found = look_around(tmp_path / "runs")
    assert found["GPUs"] == "none; driver 550.54"
    assert "gave this job none of the machine's 3 GPUs" in found["notes"]
    assert found["Slurm"].endswith("in job 12")
    monkeypatch.delenv("SLURM_JOB_ID")
    found = look_around(tmp_path / "runs")
    assert found["GPUs"] == "3 x NVIDIA H200 (150.8 GB); driver 550.54"
    assert found["notes"] == "none"
    assert found["runs"].startswith(f"{tmp_path / 'runs'}, ")
    assert not (tmp_path / "runs").exists()


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
