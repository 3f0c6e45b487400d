"""A cell of each paper at the papers' scale: real widths, image and batch sizes."""

import pytest

from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from cluster.run.smoke import smoke
from cluster.studies.cells import make
from tests.cluster.run.made_up import make_up_data

CELLS = {
    "fedd2s-table2": ("*-fedd2s", ("--num-clients=5",)),
    "hfldd": ("*-hfldd", ("--num-clients=20",)),
}
"""A cell of each paper's tables, and the clients that are enough for its smoke run."""


@pytest.mark.slow
@pytest.mark.parametrize("table", CELLS)
def test_a_cell_runs_at_paper_scale(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_up_data(monkeypatch)
    pattern, less = CELLS[table]
    cell = make(table, "paper", (pattern,), None, None)[0]
    launch = parse(
        [*cell.arguments, "--runtime=inprocess", "--smoke", "--data.max-test=200", *less]
    )
    estimate = smoke(launch, prepare(launch))
    assert 0 < estimate.seconds < float("inf")
