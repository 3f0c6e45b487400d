"""The doctor as a user calls it: once for real, and on machines that something is wrong with."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cluster import doctor
from cluster.doctor import (
    DoctorOptions,
    distance_filter,
    federation,
    look_around,
    main,
    perform,
    run_tiny,
    runs_folder,
)
from fl.errors import UserError
from tests.cluster.fake_driver import CARDS, pretend

Check = Callable[[DoctorOptions], str]
STOPPED = "OverspentError: it had 1 GB"


def below(folder: Path) -> DoctorOptions:
    return DoctorOptions(output_dir=folder)


def only(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> None:
    """Has the doctor make these checks alone."""
    monkeypatch.setattr(doctor, "ADVICE", {check: f"mend {check.__name__}" for check in checks})


def trained(_: DoctorOptions) -> str:
    return "clients trained"


def broken_disk(_: DoctorOptions) -> str:
    raise OSError("first line\ntwo got it")


def interrupted(_: DoctorOptions) -> str:
    raise KeyboardInterrupt


@pytest.mark.ray
@pytest.mark.slow
def test_this_machine_is_fit(tmp_path: Path) -> None:
    where = [f"--output-dir={tmp_path / 'runs'}", f"--json={tmp_path / 'doctor.json'}"]
    done = subprocess.run(
        [sys.executable, "-m", "cluster.doctor", *where],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1] == "fit: 3 checks passed"
    found: dict[str, Any] = json.loads((tmp_path / "doctor.json").read_text())
    assert (found["fit"], found["verdict"]) == (True, lines[-1])
    assert {check["status"] for check in found["checks"]} == {"passed"}, found
    findings = {check["name"]: check["finding"] for check in found["checks"]}
    assert findings.keys() == {"runs folder", "distance filter", "federation"}
    assert findings["federation"].startswith("3 clients trained")
    assert findings["federation"].endswith("one that went over its memory was stopped")
    assert [file.name for file in tmp_path.iterdir()] == ["doctor.json"]


def test_what_failed_comes_with_advice_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, trained, broken_disk)
    times = iter([10.0, 10.04, 20.0, 21.5])  # of each check its begin and its end
    monkeypatch.setattr(doctor, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    file = tmp_path / "doctor.json"
    assert main([f"--json={file}"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "trained          passed     0.0 s  clients trained" in lines
    assert lines[-2] == "not fit: broken disk failed"
    assert lines[-1].split() == ["broken", "disk", "mend", "broken_disk"]
    found = json.loads(file.read_text())
    assert (found["fit"], found["verdict"]) == (False, lines[-2])
    assert found["checks"][1] == {
        **{"name": "broken disk", "status": "failed", "seconds": 1.5},
        **{"finding": "two got it", "advice": "mend broken_disk"},
    }
    assert "cores" in found["found"]


def test_what_was_known_before_an_interrupt_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, trained, interrupted)
    file = tmp_path / "doctor.json"
    with pytest.raises(KeyboardInterrupt):
        main([f"--json={file}"])
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


def test_this_file_system_passes(tmp_path: Path) -> None:
    assert runs_folder(below(tmp_path / "new" / "runs"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        runs_folder(below(tmp_path / "file"))


@pytest.mark.parametrize("how", ["refused", "ignored"])
def test_a_lock_that_does_not_hold_is_found(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: object) -> None:
        if how == "refused":
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "fcntl", answer)
    result = perform(runs_folder, below(tmp_path))
    assert (result["status"], "one lock at once" in result["finding"]) == ("failed", True)
    assert "without nolock" in result["advice"]


def test_a_rename_that_tears_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_a_copy(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes())
        source.unlink()

    monkeypatch.setattr(os, "replace", as_a_copy)
    monkeypatch.setattr(os, "rename", as_a_copy)
    result = perform(runs_folder, below(tmp_path))
    assert (result["status"], "saw part" in result["finding"]) == ("failed", True)
    assert not list(tmp_path.iterdir())


def test_a_check_that_hangs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def hang(_: DoctorOptions) -> str:
        return str(over.wait())

    only(monkeypatch, hang)
    monkeypatch.setattr(doctor, "LIMIT_S", 0.2)
    result = perform(hang, DoctorOptions())  # and it hangs still
    over.set()
    assert (result["status"], result["finding"]) == ("failed", "no answer within 0.2 s")


def test_a_federation_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, started = "trap '' TERM; while :; do sleep 0.1; done", list[subprocess.Popen[str]]()

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setattr(doctor, "python", lambda _: ["sh", "-c", script])
    monkeypatch.setattr(doctor, "RUN_S", 0.1)
    with pytest.raises(TimeoutError, match=r"no end within 0\.1 s"):
        run_tiny(tmp_path / "run")
    (hanging,) = started
    assert hanging.returncode == -signal.SIGKILL


@pytest.mark.process
def test_a_cluster_that_does_not_answer_is_found() -> None:
    result = perform(federation, DoctorOptions(ray_address="127.0.0.1:1"))
    assert result["status"] == "failed"
    assert "no Ray cluster answers at 127.0.0.1:1" in result["finding"]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the tiny runs, which are left out, come to."""
    found = {"dropped": {"1": STOPPED}, "clients": 4, "fusion": {"ranks": 2}, "apart": 0.0}

    def run(run_dir: Path, *options: str, **_: str) -> tuple[dict[str, Any], torch.Tensor]:
        found.setdefault("options", options)
        return found, torch.tensor([1.0, found["apart"] if run_dir.name == "second" else 0.0])

    monkeypatch.setattr(doctor, "run_tiny", run)
    return found


def test_a_federation_on_ray_has_two_ranks(ran: dict[str, Any]) -> None:
    said = "3 clients trained, 2 rank(s) fused; one that went over its memory was stopped"
    assert federation(DoctorOptions()) == said
    assert {"--runtime=ray", "--fusion-ranks=2"} < {*ran["options"]}


def test_without_ray_no_client_has_a_cap(
    ran: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_ray() -> None:
        raise UserError("Ray is not installed")

    monkeypatch.setattr(doctor, "prepare_environment", no_ray)
    ran["dropped"] = {"1": "RuntimeError: nothing stopped it"}
    assert federation(DoctorOptions()).endswith("; Ray is not installed")


@pytest.mark.parametrize(
    ("wrong", "finding"),
    [
        ({"dropped": {"1": "RuntimeError: no cap"}}, "client 1 failed: RuntimeError: no cap"),
        ({"dropped": {"1": STOPPED, "2": "ValueError: lost"}}, "client 2 failed: ValueError: lost"),
        ({"apart": 0.01}, "weights differ by up to 0.01 from those of one process"),
    ],
)
def test_a_federation_that_goes_wrong_is_found(
    ran: dict[str, Any], wrong: dict[str, Any], finding: str
) -> None:
    ran.update(wrong)
    result = perform(federation, DoctorOptions())
    assert result["finding"] == finding
    assert "--max-actors" in result["advice"]


def test_a_filter_that_keeps_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distance_filter(DoctorOptions()).startswith("keeps the reference's samples on ")
    right = doctor.nearest_to_centroid

    def one_less(*arguments: Any, backend: str = "auto") -> Any:
        result = right(*arguments, backend=backend)
        if backend == "reference":
            object.__setattr__(result, "indices", result.indices[1:])
        return result

    monkeypatch.setattr(doctor, "nearest_to_centroid", one_less)
    with pytest.raises(RuntimeError, match="differs from the reference in 1 of 4000"):
        distance_filter(DoctorOptions())


def test_gpus_that_cannot_be_used_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    pretend(monkeypatch, *CARDS)
    with pytest.raises(RuntimeError, match="PyTorch sees none of 3 GPUs"):
        distance_filter(DoctorOptions())
    pretend(monkeypatch, fails="NVMLError_DriverNotLoaded")
    assert "DriverNotLoaded" in perform(distance_filter, DoctorOptions())["finding"]
