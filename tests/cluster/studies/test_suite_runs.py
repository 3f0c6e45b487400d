"""A suite's runs, without running any."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.run.command_line import parse
from cluster.run.options import Launch
from cluster.run.run_dir import claim
from cluster.studies import suite_runs
from cluster.studies.comparison import Cell
from cluster.studies.suite_options import parse_suite
from fl.errors import UserError
from fl.events import Phase, Preparing, RunStart

CELL = Cell("digits-alpha0.5", "fedavg", ("--method=fedavg", "--num-clients=2"), None)


def runs(root: Path) -> dict[tuple[Cell, int], Launch]:
    options = parse_suite(["table3", f"--output-dir={root}", "--runtime=inprocess"])
    return suite_runs.runs_of(options, [CELL], [0])


def finish(launch: Launch) -> None:
    result = {"accuracy": 0.5, "seconds": {"total": 3.0}}
    (claim(launch) / "result.json").write_text(json.dumps(result))


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
    done = asked[CELL, 0]
    finish(replace(done, run=replace(done.run, alpha=0.9)))
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


SMALL = ("--num-clients=2", "--data.max-train=100", "--data.max-test=50")


def launch(*arguments: str) -> Launch:
    return parse([*SMALL, "--runtime=inprocess", *arguments])


def test_what_can_be_run_is_not_refused() -> None:
    suite_runs.refuse_any({m: launch(f"--method={m}") for m in ("fedavg", "fedmho-sd")})


def test_settings_that_exclude_each_other_are_named_with_their_cell() -> None:
    bad = launch("--method=feddf", "--auxiliary.dataset=digits")
    with pytest.raises(UserError, match=r"^second: auxiliary.dataset must be another data set"):
        suite_runs.refuse_any({"first": launch("--method=fedavg"), "second": bad})


@pytest.mark.parametrize("needed", ["--dataset=mnist", "--method=feddf"])
def test_missing_data_are_named_with_their_cell(needed: str, tmp_path: Path) -> None:
    bad = launch(needed, f"--data-root={tmp_path}")
    with pytest.raises(UserError, match=r"^second: .*mnist: missing"):
        suite_runs.refuse_any({"first": launch("--method=fedavg"), "second": bad})


def test_no_cell_runs_where_a_later_one_cannot(tmp_path: Path) -> None:
    options = parse_suite(["table3", f"--output-dir={tmp_path / 'runs'}", "--runtime=inprocess"])
    good = Cell("digits-fedavg", "fedavg", ("--method=fedavg", *SMALL), None)
    bad = Cell("digits-feddf", "feddf", ("--method=feddf", "--auxiliary.dataset=digits"), None)
    runs = suite_runs.runs_of(options, [good, bad], [0, 1])
    with pytest.raises(UserError, match=r"^digits-feddf"):
        suite_runs.run_all(runs)
    assert not (tmp_path / "runs").exists()
