"""The papers' tables and figures as a user asks for them: finished runs are not repeated."""

import json
from dataclasses import replace
from pathlib import Path
from types import GenericAlias

import pytest

from cluster import suite
from cluster.run.command_line import as_arguments, parse, setting_types
from cluster.run.options import LaunchOptions
from cluster.run.run_dir import claim
from cluster.studies.cells import TABLES, make
from cluster.studies.comparison import Cell, Published
from fl.json_files import flatten, write_json
from fl.methods.registry import METHODS
from tests.cluster.commands import SMALL
from tests.cluster.run.made_up import measure_nothing
from tests.fl.data.domain_folder import SHADES, tree
from tests.undrawn import WRITE_REPORT, draw_nothing

PAPER = Published(90.0, 1.0)


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WRITE_REPORT, draw_nothing)


@pytest.fixture
def tiny_table(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--dataset=digits", *SMALL)
    votes = tuple(o for o in options if not o.startswith(("--gen", "--num-s", "--fusion")))
    made = [
        Cell("digits-alpha0.5", "fedavg", ("--method=fedavg", *votes), PAPER),
        Cell("digits-alpha0.5", "fedmho", ("--method=fedmho", *options), PAPER),
    ]
    monkeypatch.setitem(TABLES, "table3", lambda scale: made)


def run_suite(root: Path, *more: str) -> int:
    return suite.main(["table3", f"--output-dir={root}", "--runtime=inprocess", *more])


@pytest.mark.usefixtures("tiny_table")
def test_finished_runs_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run_suite(tmp_path, "--seeds=0", "--only", "*-fedavg") == 0
    first = tmp_path / "table3-small-digits-alpha0.5-fedavg-seed0" / "result.json"
    written = first.stat().st_mtime_ns
    said = capsys.readouterr().out
    run = "[1 of 1] digits-alpha0.5-fedavg seed 0: "
    for step in ("reading the data: digits …", "cutting it among 4 clients …", "running …"):
        assert f"{run}{step}\n" in said
    assert said.startswith("loading torch …\n")
    assert max(map(len, said.partition(f"{run}0.")[0].splitlines())) <= 80
    assert run_suite(tmp_path, "--seeds=0") == 0
    assert first.stat().st_mtime_ns == written
    said = capsys.readouterr().out
    assert "2 of 2" in said
    table = (tmp_path / "table3-small.md").read_text()
    assert table in said
    assert table.count("digits-alpha0.5 | fed") == 2
    assert (tmp_path / "table3-small.json").exists()


@pytest.mark.usefixtures("tiny_table")
def test_a_dry_run_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run_suite(tmp_path, "--seeds=3", "--dry-run") == 0
    assert capsys.readouterr().out.count("to be run") == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("tiny_table")
def test_a_dry_run_at_paper_scale_says_what_the_table_would_take(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_nothing(monkeypatch)
    asked = ("--scale=paper", "--seeds=3,4", "--dry-run", "--only=*-fedavg")
    assert run_suite(tmp_path, *asked) == 0
    said = capsys.readouterr().out
    assert "digits-alpha0.5-fedavg, 2 such runs: about " in said
    assert "\none after the other about " in said
    assert not list(tmp_path.iterdir())
    assert run_suite(tmp_path, *asked, "--dataset=svhn", f"--data-root={tmp_path}") == 0
    said = capsys.readouterr().out
    assert said.count("such runs: unknown, ") == 1
    assert said.endswith("nothing is known\n")


@pytest.mark.usefixtures("tiny_table")
def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run_suite(tmp_path, "--only", "nothing") == 2
    said = capsys.readouterr().err
    assert "matches no cell of table3; e.g. digits-alpha0.5-fedavg" in said
    assert said.count("\n") == 1


def test_a_figure_of_finished_runs_is_told_and_drawn_and_nothing_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cell,) = make("fedaf", "small", ("mnist-alpha0.1-fedaf",))
    where = f"--output-dir={tmp_path}"
    for seed, last in enumerate((0.6, 0.7)):
        name = f"--name=fedaf-small-{cell.name}-seed{seed}"
        result = {
            "accuracy": last,
            "best_accuracy": 0.8,
            "start_accuracy": 0.1,
            "accuracy_curve": [0.3, 0.8, last],
            "bytes_up": 2**20,
            "protocol": "rounds",
            "seconds": {"total": 1.0},
        }
        launch = parse([*cell.arguments, f"--seed={seed}", where, name])
        write_json(claim(launch) / "result.json", result)
    assert suite.main(["fedaf", "--only", cell.name, "--seeds=0,1", where]) == 0
    told = capsys.readouterr().out
    assert "| mnist-alpha0.1 | fedaf | 65.00 ± 7.07 | 80.00 ± 0.00 | - | 1.00 |" in told
    assert (tmp_path / "fedaf-small.png").read_bytes().startswith(b"\x89PNG")


DOMAIN_SIZES = {
    "rounds": 2,
    "data": {"side": 8},
    "partition": {"min_samples": 1},
    "classifier": {"epochs": 1},
    "condensation": {"steps": 2},
    "fusion": {"epochs": 2},
}


def smaller(cell: Cell) -> Cell:
    """The cell with those of the sizes that its method has."""
    valid = dict(setting_types(GenericAlias(LaunchOptions, (METHODS[cell.registered].config,))))
    fitting = {name: value for name, value in flatten(DOMAIN_SIZES).items() if name in valid}
    own = [argument for name, value in fitting.items() for argument in as_arguments(name, value)]
    return replace(cell, arguments=(*cell.arguments, *own))


@pytest.mark.slow
def test_table2_is_made_of_a_folder_of_domains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All eight methods, a client for each of three domains."""
    row = [smaller(cell) for cell in TABLES["fedaf-table2"]("small")]
    monkeypatch.setitem(TABLES, "fedaf-table2", lambda scale: row)
    runs = tmp_path / "runs"
    asked = ["fedaf-table2", "--seeds=0", "--runtime=inprocess", f"--output-dir={runs}"]
    assert suite.main([*asked, f"--data-folder={tree(tmp_path / 'shades')}"]) == 0
    table = (runs / "fedaf-table2-small.md").read_text()
    assert f"| Method | {' | '.join(sorted(SHADES))} | Mean |" in table
    for cell in row:
        run = runs / f"fedaf-table2-small-{cell.name}-seed0"
        shares = json.loads((run / "result.json").read_text())["per_domain_accuracy"]
        assert list(shares) == sorted(SHADES)
        assert (
            f"| {cell.method} | {' | '.join(f'{100 * v:.2f}' for v in shares.values())} | " in table
        )
    assert (runs / "fedaf-table2-small.png").exists()
