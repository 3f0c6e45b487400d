"""The study of growing numbers of clients, as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest

import cluster.study
from cluster.run.run_dir import locked
from cluster.studies.study_runs import StudyRun, parse_study, run_cell
from cluster.study import main
from fl.errors import UserError
from tests.cluster.studies.small_study import SMALL
from tests.undrawn import WRITE_REPORT, draw_nothing


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells in this process, and undrawn: each in its own, as the page about many clients has
    it, imports torch for seconds."""

    def run(cell: StudyRun) -> int:
        run_cell(cell)
        return 0

    monkeypatch.setattr(cluster.study, "_run", run)
    monkeypatch.setattr(WRITE_REPORT, draw_nothing)


def study(output_dir: Path, *arguments: str) -> int:
    return main([*SMALL, f"--output-dir={output_dir}", *arguments])


def figures(output_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output_dir / "study.json").read_text())
    return found


def test_each_number_of_clients_is_run_once_and_continued_if_interrupted(tmp_path: Path) -> None:
    """With data for each client fixed: the digits have about 1,400 training images."""
    arguments = ("--num-clients=2,5", "--samples-per-client=400")
    assert study(tmp_path, *arguments) == 0
    found = figures(tmp_path)["cells"]
    assert [(c["clients"], c["seed"]) for c in found] == [(2, 0), (5, 0)]
    assert [c["samples"] for c in found] == [800, 2000]
    assert [c["drawn_with_replacement"] for c in found] == [False, True]
    for cell in found:
        assert cell["trained"] == cell["clients"]
        assert cell["bytes_up"] > 0
        assert cell["driver_peak_bytes"] > 2**26
    for name in ("seconds", "memory", "bytes", "rate", "accuracy"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "rate" in figures(tmp_path)["slopes"]
    assert study(tmp_path, *arguments, "--generator.epochs=3") == 2

    first, second = (tmp_path / f"k{k}-seed0" / "result.json" for k in (2, 5))
    written = first.stat().st_mtime_ns
    second.with_name("study.json").unlink()
    second.unlink()
    assert study(tmp_path, *arguments) == 0
    assert first.stat().st_mtime_ns == written
    unchanged, continued = figures(tmp_path)["cells"]
    assert unchanged == found[0]
    assert continued["trained"] == 0
    assert continued["accuracy"] == found[1]["accuracy"]


def test_a_bare_study_says_what_it_needs_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("example:  onefold study --")) == ("", 1)
    assert len(told.err.splitlines()) <= 10
    assert not list(tmp_path.iterdir())
    (example,) = (line for line in told.err.splitlines() if line.startswith("example"))
    assert parse_study(example.split()[3:])[0].num_clients == "5,10,20"  # is taken


def test_nobody_else_has_a_studys_folder_while_it_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two runs none of them is locked, and onefold rm would delete them all."""

    def run(cell: StudyRun) -> int:
        with pytest.raises(UserError, match="in use by process"), locked(tmp_path):
            pass
        return 3

    monkeypatch.setattr(cluster.study, "_run", run)
    assert study(tmp_path, "--num-clients=2") == 3
    with locked(tmp_path):
        assert study(tmp_path, "--num-clients=2") == 2


def test_a_dry_run_names_the_runs_and_starts_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.study, "_run", lambda cell: pytest.fail("a run was started"))
    asked = ["--num-clients=2,3", "--seeds=0,1", "--runtime=inprocess", "--dry-run"]
    assert main([*asked, f"--output-dir={tmp_path}"]) == 0
    told, *lines = capsys.readouterr().out.splitlines()
    assert told == "loading torch …"
    cells = [f"k{clients}-seed{seed}" for clients in (2, 3) for seed in (0, 1)]
    assert [lines.pop(0) for _ in cells] == [f"preparing {cell} …" for cell in cells]
    assert [line.split("  ") for line in lines] == [
        [str(tmp_path / cell), "to be run"] for cell in cells
    ]
