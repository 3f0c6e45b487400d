"""The study of growing numbers of clients, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cluster.study
from cluster.study import main
from tests.cluster.commands import environment
from tests.cluster.studies.small_study import SMALL, run_undrawn


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.study, "_in_process", run_undrawn)


def study(output_dir: Path, *arguments: str) -> int:
    return main([*SMALL, f"--output-dir={output_dir}", *arguments])


def figures(output_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output_dir / "study.json").read_text())
    return found


@pytest.mark.slow
def test_each_number_of_clients_and_seed_is_run_once_and_continued_if_interrupted(
    tmp_path: Path,
) -> None:
    arguments = ("--num-clients=3,8", "--seeds=0,1", "--data.max-train=200")
    assert study(tmp_path, *arguments) == 0
    found = figures(tmp_path)["cells"]
    assert [(c["clients"], c["seed"]) for c in found] == [(3, 0), (3, 1), (8, 0), (8, 1)]
    for cell in found:
        assert cell["samples"] == 200
        assert cell["trained"] == cell["clients"]
        assert cell["bytes_up"] > 0
        assert cell["driver_peak_bytes"] > 2**26
        assert not cell["drawn_with_replacement"]
    for name in ("seconds", "memory", "bytes", "rate", "accuracy"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/result.json")}
    assert len(stamps) == 4
    assert study(tmp_path, *arguments) == 0
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/result.json")} == stamps
    assert figures(tmp_path)["cells"] == found
    assert "rate" in figures(tmp_path)["slopes"]
    assert study(tmp_path, *arguments, "--generator.epochs=3") == 2

    (tmp_path / "k8-seed0" / "study.json").unlink()
    (tmp_path / "k8-seed0" / "result.json").unlink()
    assert study(tmp_path, *arguments) == 0
    *others, continued, last = figures(tmp_path)["cells"]
    assert [*others, last] == [*found[:2], found[3]]
    assert continued["trained"] == 0
    assert continued["accuracy"] == found[2]["accuracy"]


@pytest.mark.slow
def test_data_for_each_client_can_be_fixed(tmp_path: Path) -> None:
    """The digits have about 1,400 training images."""
    assert study(tmp_path, "--num-clients=2,5", "--samples-per-client=400") == 0
    found = figures(tmp_path)["cells"]
    assert [c["samples"] for c in found] == [800, 2000]
    assert [c["drawn_with_replacement"] for c in found] == [False, True]


def test_help_names_the_studys_options() -> None:
    command = [sys.executable, "-m", "cluster.study", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    for option in ("--num-clients", "--seeds", "--samples-per-client", "cluster.launch"):
        assert option in done.stdout


def test_a_dry_run_names_the_runs_and_starts_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.study, "_run", lambda cell: pytest.fail("a run was started"))
    asked = ["--num-clients=2,3", "--runtime=inprocess", f"--output-dir={tmp_path}", "--dry-run"]
    assert main(asked) == 0
    told, *lines = capsys.readouterr().out.splitlines()
    assert told == "loading torch …"
    steps = [f"preparing k{clients}-seed0 …" for clients in (2, 3)]
    assert [lines.pop(0) for _ in steps] == steps
    assert [line.split("  ") for line in lines] == [
        [str(tmp_path / f"k{clients}-seed0"), "to be run"] for clients in (2, 3)
    ]


def test_a_study_refuses_to_be_sent_to_slurm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--num-clients=2", f"--output-dir={tmp_path}", "--slurm"]) == 2
    assert "a study runs where it is started" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
