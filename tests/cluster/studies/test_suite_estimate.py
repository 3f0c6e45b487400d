"""Runs of a table that differ in alpha and seed alone are one kind, of which one is tried."""

from pathlib import Path

import pytest

from cluster.run.command_line import parse
from cluster.studies import suite_runs
from cluster.studies.comparison import Cell
from cluster.studies.suite_runs import tell


def test_one_run_of_each_kind_is_tried_and_finished_ones_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    class Hour:
        seconds, gpu_hours = 3600.0, 2.0

    asked: list[str] = []
    monkeypatch.setattr(suite_runs, "_estimate", lambda a, name: asked.append(name) or Hour)
    runs = {}
    for method in ("fedavg", "fedmho"):
        for alpha in ("0.1", "0.5"):
            cell = Cell(f"row{alpha}", method, (f"--method={method}", f"--alpha={alpha}"))
            where = (f"--output-dir={tmp_path}", f"--name={method}{alpha}")
            runs[cell, 0] = parse([*cell.arguments, *where])
    (tmp_path / "fedmho0.5").mkdir()
    (tmp_path / "fedmho0.5" / "result.json").touch()
    tell(runs)
    assert asked == ["row0.1-fedavg, 2 such runs", "row0.1-fedmho, 1 such run"]
    assert "one after the other about 3.0 h, 6.0 GPU-hours" in capsys.readouterr().out
