"""A suite's runs, without running any."""

import json
from pathlib import Path

import pytest

from cluster.run.command_line import parse
from cluster.run.run_dir import claim
from cluster.studies import suite_runs
from cluster.studies.cell import Cell
from cluster.studies.suite_options import parse_suite
from fl.errors import UserError
from fl.events import Phase, Preparing, RunStart

CELL = Cell("digits-alpha0.5", "fedavg", ("--method=fedavg", "--num-clients=2"), None)


def runs(root: Path) -> dict[tuple[Cell, int], list[str]]:
    options = parse_suite(["table3", f"--output-dir={root}", "--runtime=inprocess"])
    return suite_runs.arguments_of(options, [CELL], [0])


def finish(arguments: list[str]) -> None:
    result = {"accuracy": 0.5, "seconds": {"total": 3.0}}
    (claim(parse(arguments)) / "result.json").write_text(json.dumps(result))


def test_a_finished_run_is_told_without_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = runs(tmp_path)
    finish(asked[CELL, 0])
    (figure,) = suite_runs.run_all(asked)
    assert [r["accuracy"] for r in figure.results] == [0.5]
    assert capsys.readouterr().out == "[1 of 1] digits-alpha0.5-fedavg seed 0: 0.5000, 3.0 s\n"


def test_a_run_with_other_settings_is_not_taken_for_ours(tmp_path: Path) -> None:
    asked = runs(tmp_path)
    finish([*asked[CELL, 0], "--alpha=0.9"])
    with pytest.raises(UserError, match="was run with other settings"):
        suite_runs.run_all(asked)


def test_what_a_run_prepares_is_said_and_once_that_it_runs() -> None:
    said: list[str] = []
    hear = suite_runs._heard(said.append)
    for event in (RunStart(), Preparing(what="starting Ray")):
        hear(event)
    for phase in ("local", "fusion", "local"):
        hear(Phase(phase=phase, status="start"))
    assert said == ["starting Ray", "running"]
