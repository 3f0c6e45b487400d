"""Tables whose runs are recorded one by one, so that they go on where they were ended."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import results
from results import Job, Options, Provenance, of_runs, of_same_code
from run_lines import digest

from cluster.run.command_line import parse
from cluster.studies import suite_runs
from cluster.studies.comparison import Cell, Figure
from fl.errors import ClientFailed, UserError
from tests.undrawn import WRITE_REPORT, draw_nothing

ARGUMENTS = ("--dataset=digits", "--data.max-train=64", "--data.max-test=32", "--num-clients=2")
MODEL = ("--classifier.model=mlp", "--classifier.epochs=1")
CELLS = [Cell("digits", m, (f"--method={m}", *ARGUMENTS, *MODEL)) for m in ("fedavg", "local")]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    options = Options(tables=(), seeds="0,1", output_dir=tmp_path / "runs", runtime="inprocess")
    return Job(options, Provenance("2026-11-25", "0123abc", "a machine"), tmp_path)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were run, by name; the commit's code is as today's."""
    names: list[str] = []
    run_all = suite_runs.run_all

    def recorded(runs: suite_runs.Runs) -> list[Figure]:
        names.extend(f"{cell.method}-{seed}" for cell, seed in runs)
        return run_all(runs)

    monkeypatch.setattr(suite_runs, "run_all", recorded)
    monkeypatch.setattr(WRITE_REPORT, draw_nothing)
    monkeypatch.setattr(results, "of_same_code", lambda commit, since: commit == "0123abc")
    return names


def elsewhere(job: Job, **options: object) -> Job:
    """The same job on a machine that has the lines but no run's folder."""
    where = job.options.output_dir.with_name("elsewhere")
    return replace(job, options=replace(job.options, output_dir=where, **options))


def test_a_table_goes_on_elsewhere_with_what_has_no_line_yet(job: Job, ran: list[str]) -> None:
    whole = of_runs("table4", lambda: CELLS, job)
    assert ran == ["fedavg-0", "fedavg-1", "local-0", "local-1"]
    path = job.docs / "runs" / "table4.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]))
    of_runs("table4", lambda: CELLS, elsewhere(job, only=("*-fedavg",)))
    assert len(ran) == 4

    part = of_runs("table4", lambda: CELLS, elsewhere(job, recorded=True))
    assert "3 of 4 runs, of commit 0123abc (2026-11-25)" in part
    assert "| fedavg |" in part
    assert "| local |" not in part

    assert of_runs("table4", lambda: CELLS, elsewhere(job)) == whole
    assert ran[4:] == ["local-1"]


@pytest.mark.parametrize("changed", ["settings", "code"])
def test_a_line_of_other_settings_or_code_stands_for_no_run(
    job: Job, ran: list[str], changed: str
) -> None:
    job = replace(job, options=replace(job.options, seeds="0"))
    of_runs("table4", lambda: CELLS[:1], job)
    cells = CELLS[:1]
    if changed == "settings":
        cells = [replace(CELLS[0], arguments=(*CELLS[0].arguments, "--classifier.lr=0.03"))]
    else:
        path = job.docs / "runs" / "table4.jsonl"
        path.write_text(path.read_text().replace("0123abc", "4567def"))
    with pytest.raises(UserError, match="no cell of table4 with a run of each seed"):
        of_runs("table4", lambda: cells, elsewhere(job, recorded=True))
    of_runs("table4", lambda: cells, elsewhere(job))
    assert ran == ["fedavg-0"] * 2


def test_equal_settings_have_one_digest() -> None:
    one, other = (parse([f"--alpha={alpha}"]).run for alpha in ("1", "1.0"))
    whole = replace(one, alpha=1)  # as a file of settings may have it
    assert one == other == whole
    assert digest(one) == digest(other) == digest(whole) != digest(replace(one, alpha=2.0))


def test_a_failed_run_is_told_and_has_no_line(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    run_all = suite_runs.run_all

    def failing(runs: suite_runs.Runs) -> list[Figure]:
        if any(seed == 1 for _, seed in runs):
            raise ClientFailed(0, "mlp", "no luck")
        return run_all(runs)

    monkeypatch.setattr(suite_runs, "run_all", failing)
    monkeypatch.setattr(results, "of_same_code", lambda commit, since: True)
    text = of_runs("table4", lambda: CELLS[:1], job)
    assert "Failed: digits-fedavg, seed 1: client 0 (mlp) failed: no luck" in text
    (line,) = (job.docs / "runs" / "table4.jsonl").read_text().splitlines()
    assert json.loads(line)["seed"] == 0


def test_commits_are_told_apart_by_their_code() -> None:
    head = results._git("rev-parse", "HEAD")
    assert of_same_code(head, since=None)
    assert of_same_code(head, since=head)
    assert not of_same_code("0" * 40, since=None)
    assert not of_same_code("0" * 40, since=head)
