"""A suite's cells are checked before its first run."""

from pathlib import Path

import pytest

from cluster.run.command_line import parse
from cluster.run.options import Launch
from cluster.studies import suite_checks, suite_runs
from cluster.studies.cell import Cell
from cluster.studies.suite_options import parse_suite
from fl.errors import UserError

SMALL = ("--num-clients=2", "--data.max-train=100", "--data.max-test=50")


def launch(*arguments: str) -> Launch:
    return parse([*SMALL, "--runtime=inprocess", *arguments])


def test_what_can_be_run_is_not_refused() -> None:
    suite_checks.refuse_any({m: launch(f"--method={m}") for m in ("fedavg", "fedmho-sd")})


def test_settings_that_exclude_each_other_are_named_with_their_cell() -> None:
    bad = launch("--method=feddf", "--auxiliary.dataset=digits")
    with pytest.raises(UserError, match=r"^second: auxiliary.dataset must be another data set"):
        suite_checks.refuse_any({"first": launch("--method=fedavg"), "second": bad})


@pytest.mark.parametrize("needed", ["--dataset=mnist", "--method=feddf"])
def test_missing_data_are_named_with_their_cell(needed: str, tmp_path: Path) -> None:
    bad = launch(needed, f"--data-root={tmp_path}")
    with pytest.raises(UserError, match=r"^second: .*mnist: missing"):
        suite_checks.refuse_any({"first": launch("--method=fedavg"), "second": bad})


def test_no_cell_runs_where_a_later_one_cannot(tmp_path: Path) -> None:
    options = parse_suite(["table3", f"--output-dir={tmp_path / 'runs'}", "--runtime=inprocess"])
    good = Cell("digits-fedavg", "fedavg", ("--method=fedavg", *SMALL), None)
    bad = Cell("digits-feddf", "feddf", ("--method=feddf", "--auxiliary.dataset=digits"), None)
    runs = suite_runs.arguments_of(options, [good, bad], [0, 1])
    with pytest.raises(UserError, match=r"^digits-feddf"):
        suite_runs.run_all(runs)
    assert not (tmp_path / "runs").exists()
