"""A suite's options, its runs without running any, and how long they would take."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import grid
from cluster.run.command_line import parse
from cluster.run.options import Launch
from cluster.run.run_dir import claim
from cluster.studies import suite_runs
from cluster.studies.cells import EXHIBITS, parse_suite
from cluster.studies.comparison import Cell, Figure, as_markdown
from cluster.studies.exhibits import Exhibit
from cluster.studies.suite_runs import Runs, describe
from fl.errors import ClientFailed, UserError
from fl.events import Phase, Preparing, RunStart

CELL = Cell("digits-alpha0.5", "fedavg", ("--method=fedavg", "--num-clients=2"), None)


def runs_of(root: Path, cells: Sequence[Cell] = (CELL,), seeds: Sequence[int] = (0,)) -> Runs:
    options = parse_suite(["table3", f"--output-dir={root}", "--runtime=inprocess"])
    return suite_runs.runs_of(options, cells, seeds)


def finish(launch: Launch) -> None:
    result = {"accuracy": 0.5, "seconds": {"total": 3.0}}
    (claim(launch) / "result.json").write_text(json.dumps(result))


def test_a_finished_run_is_told_without_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = runs_of(tmp_path)
    finish(asked[CELL, 0])
    (figure,) = suite_runs.run_all(asked)
    assert [r["accuracy"] for r in figure.results] == [0.5]
    assert capsys.readouterr().out == "[1 of 1] digits-alpha0.5-fedavg seed 0: 0.5000, 3.0 s\n"


def test_a_run_with_other_settings_is_not_taken_for_ours(tmp_path: Path) -> None:
    asked = runs_of(tmp_path)
    done = asked[CELL, 0]
    finish(replace(done, run=replace(done.run, alpha=0.9)))
    with pytest.raises(UserError, match=r"holds another run \(alpha: 0\.9 -> 0\.5\)"):
        suite_runs.run_all(asked)


def test_a_client_that_fails_ends_its_run_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of hours ended at one client whose training had diverged."""
    other = replace(CELL, method="fedprox", arguments=("--method=fedprox", *CELL.arguments[1:]))
    asked = runs_of(tmp_path, [CELL, other], [0, 1])

    def result(launch: Launch, say: object) -> dict[str, object]:
        if launch.run.method == "fedavg" and launch.run.seed == 0:
            raise ClientFailed(3, "cnn", "it diverged")
        return {"accuracy": 0.5 + launch.run.seed / 10, "seconds": {"total": 3.0}}

    monkeypatch.setattr(suite_runs, "_result", result)
    monkeypatch.setattr(suite_runs, "refuse_any", lambda left: None)
    fedavg, fedprox = suite_runs.run_all(asked)
    assert (fedavg.accuracies, fedprox.accuracies) == ((0.6,), (0.5, 0.6))
    assert "seed 0: client 3 (cnn) failed: it diverged" in capsys.readouterr().out
    text = as_markdown("table3", "small", [0, 1], [fedavg, fedprox])
    assert "| fedavg | 60.00 | failed |" in text
    assert "Failed: digits-alpha0.5-fedavg, seed 0: client 3 (cnn) failed: it diverged" in text
    asked = {key: launch for key, launch in asked.items() if key == (CELL, 0)}
    with pytest.raises(ClientFailed, match="it diverged"):
        suite_runs.run_all(asked)


def test_a_cell_whose_runs_all_failed_has_its_row_and_the_exit_status_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def result(launch: Launch, say: object) -> dict[str, object]:
        if launch.run.method == "fedprox":
            raise ClientFailed(3, "cnn", "it diverged")
        score = {"accuracy": 0.5, "seconds": {"total": 3.0}, "protocol": "rounds"}
        curve = {"start_accuracy": 0.1, "accuracy_curve": [0.5]}
        return {**score, **curve, "seed": launch.run.seed}

    monkeypatch.setattr(suite_runs, "_result", result)
    asked = ["method=fedavg,fedprox,fedper", "seed=0,1", f"--output-dir={tmp_path}"]
    assert grid.main([*asked, "--runtime=inprocess", *SMALL]) == 1
    told = capsys.readouterr().out
    assert "| digits | fedavg | 50.00 ± 0.00 | 1 |" in told
    assert "| digits | fedprox | failed | failed |" in told
    assert "Failed: digits-fedprox, seed 1: client 3 (cnn) failed: it diverged" in told
    cells = {c["method"]: c for c in json.loads((tmp_path / "grid.json").read_text())["cells"]}
    assert (cells["fedavg"]["seeds"], cells["fedprox"]["mean"]) == ([0, 1], None)
    assert len(cells["fedprox"]["failed"]) == 2


def test_a_table_is_saved_before_its_picture_is_drawn(tmp_path: Path) -> None:
    def fail(figures: object) -> None:
        raise ZeroDivisionError

    result = {"accuracy": 0.5, "protocol": "rounds"}
    table = suite_runs.Table("t", None, [0], [Figure(CELL, (result,))], Exhibit(fail, "round"))
    with pytest.raises(ZeroDivisionError):
        table.write(tmp_path)
    assert (tmp_path / "t.md").exists()
    assert (tmp_path / "t.json").exists()


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
    suite_runs.refuse_any({"ranks": parse([*SMALL, "--fusion-ranks=2", "--method=fedmho"])})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--method=feddf", "--auxiliary.dataset=digits"], "auxiliary.dataset must be another"),
        (["--dataset=mnist"], ".*mnist: files in .*missing"),
        (["--method=feddf"], ".*mnist: files in .*missing"),
    ],
)
def test_what_cannot_be_run_is_named_with_its_cell(
    given: list[str], why: str, tmp_path: Path
) -> None:
    bad = launch(*given, f"--data-root={tmp_path}")
    with pytest.raises(UserError, match=f"^second: {why}"):
        suite_runs.refuse_any({"first": launch("--method=fedavg"), "second": bad})


def test_no_cell_runs_where_a_later_one_cannot(tmp_path: Path) -> None:
    good = Cell("digits-fedavg", "fedavg", ("--method=fedavg", *SMALL), None)
    bad = Cell("digits-feddf", "feddf", ("--method=feddf", "--auxiliary.dataset=digits"), None)
    with pytest.raises(UserError, match=r"^digits-feddf"):
        suite_runs.run_all(runs_of(tmp_path / "runs", [good, bad], [0, 1]))
    assert not (tmp_path / "runs").exists()


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
    describe(runs)
    assert asked == ["row0.1-fedavg, 2 such runs", "row0.1-fedmho, 1 such run"]
    assert "one after the other about 3.0 h, 6.0 GPU-hours" in capsys.readouterr().out


def test_every_table_and_figure_can_be_asked_for() -> None:
    for name in EXHIBITS:
        assert parse_suite([name]).name == name


def test_seeds_are_numbers_each_once_in_their_order() -> None:
    assert parse_suite(["table3", "--seeds=2,0,2,1"]).seed_numbers == [2, 0, 1]


@pytest.mark.parametrize("given", [["--slurm"], ["--slurm.nodes=2"], ["--slurm", "--slurm.time=9"]])
def test_any_slurm_setting_submits(given: list[str]) -> None:
    assert parse_suite(["table3", *given]).slurm.submit
    assert not parse_suite(["table3"]).slurm.submit


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["table33"], r"unknown name 'table33'; valid: .*table3, "),
        (
            ["table3", "--seeds=one"],
            "seeds must be whole numbers from 0, with commas between, got 'one'",
        ),
        (["table3", "--dataset=mnits"], "unknown dataset 'mnits'; valid: .*mnist"),
        (["table3", "--slurm.nodes=0"], "slurm.nodes must be at least 1, got 0"),
        (["table3", "--sede=1"], "unknown option '--sede' .did you mean --seeds"),
    ],
)
def test_bad_input_is_refused_in_one_line(given: list[str], line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}") as refused:
        parse_suite(given)
    assert "\n" not in str(refused.value)
