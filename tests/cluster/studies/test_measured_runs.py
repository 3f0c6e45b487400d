"""What runs behind the page found is kept, and what is of today's code is not run again."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.run.options import Launch
from cluster.studies import measured_runs, suite_runs
from cluster.studies.cell import Cell
from cluster.studies.digests import ROOT, digest_of_cell
from cluster.studies.measured_runs import MeasuredRun, add, figures_of, read
from cluster.studies.provenance import Provenance
from cluster.studies.results_tables import TABLES, OfRuns
from fl.errors import UserError
from fl.json_values import JsonObject

CELL = Cell("digits-alpha0.5", "fedavg", ("--method=fedavg", "--num-clients=2"))
HERE = Provenance("2026-11-25", "0123abc", "a machine")
RESULT = {"accuracy": 0.5, "seconds": {"total": 3.0}}
FAILS = 9
"""The seed of a run that fails."""
RUN = MeasuredRun(CELL.name, 0, digest_of_cell(CELL), HERE, RESULT, (2.0, 1.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "table.jsonl"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of the runs that were run, whose accuracies are a tenth, two tenths and so on."""
    runs: list[int] = []

    def result(launch: Launch, say: object) -> JsonObject:
        runs.append(launch.run.seed)
        if launch.run.seed == FAILS:
            raise UserError("no data")
        return RESULT | {"accuracy": len(runs) / 10}

    monkeypatch.setattr(suite_runs, "_result", result)
    monkeypatch.setattr(measured_runs, "here_and_now", lambda: HERE)
    return runs


def runs_of(*seeds: int) -> dict[tuple[Cell, int], list[str]]:
    return {(CELL, seed): [*CELL.arguments, f"--seed={seed}"] for seed in seeds}


def test_what_was_written_is_read_again_without_what_no_table_reads(path: Path) -> None:
    assert read(path) == []
    add(path, replace(RUN, result={**RESULT, "placements": [1], "confusion": [[2]]}))
    add(path, replace(RUN, seed=1))
    assert read(path) == [RUN, replace(RUN, seed=1)]


def test_a_run_takes_the_place_of_an_older_one(path: Path) -> None:
    for run in (RUN, replace(RUN, seed=1), replace(RUN, sources="of older code")):
        add(path, run)
    assert read(path) == [replace(RUN, sources="of older code"), replace(RUN, seed=1)]


def test_runs_of_todays_code_are_not_run_again(path: Path, asked: list[int]) -> None:
    add(path, RUN)
    (figure,), places = figures_of(runs_of(0, 1), path)
    assert asked == [1]
    assert figure.accuracies == (0.5, 0.1)
    assert figure.losses == ((2.0, 1.0), ())
    assert places == ["- 2 of 2 runs: 2026-11-25, commit 0123abc; a machine"]
    figures_of(runs_of(0, 1), path)
    assert asked == [1]


def test_runs_of_older_code_are_run_again(path: Path, asked: list[int]) -> None:
    add(path, replace(RUN, sources="of older code", provenance=replace(HERE, commit="fedcba9")))
    (figure,), places = figures_of(runs_of(0), path)
    assert asked == [0]
    assert figure.accuracies == (0.1,)
    assert places == ["- 1 of 1 runs: 2026-11-25, commit 0123abc; a machine"]


def test_machines_are_told_apart(path: Path, asked: list[int]) -> None:
    add(path, replace(RUN, provenance=replace(HERE, machine="another one")))
    _, places = figures_of(runs_of(0, 1, 2), path)
    assert places == [
        "- 1 of 3 runs: 2026-11-25, commit 0123abc; another one",
        "- 2 of 3 runs: 2026-11-25, commit 0123abc; a machine",
    ]


def test_what_was_found_before_a_failure_stays(path: Path, asked: list[int]) -> None:
    with pytest.raises(UserError, match="no data"):
        figures_of(runs_of(0, FAILS), path)
    assert [run.seed for run in read(path)] == [0]


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"losses": [], "provenance": {}}', "\n"])
def test_a_line_that_is_no_run_is_named(path: Path, line: str) -> None:
    add(path, RUN)
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(UserError, match=r"table\.jsonl, line 2: this is no run that was measured"):
        read(path)


def test_the_runs_in_the_docs_are_of_the_pages_tables() -> None:
    tables = [table for table in TABLES.values() if isinstance(table, OfRuns)]
    for path in (ROOT / "docs" / "runs").glob("*"):
        cells = {cell.name for table in tables if table.name == path.stem for cell in table.cells()}
        assert {run.cell for run in read(path)} <= cells
