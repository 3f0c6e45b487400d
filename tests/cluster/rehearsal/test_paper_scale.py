"""One cell of every table and figure at the papers' scale: real widths, image and batch sizes."""

from pathlib import Path

import pytest

from cluster.rehearsal.rehearse import rehearse
from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from cluster.studies.cells import DOMAINS_TABLE, TABLES, make
from tests.cluster.rehearsal.made_up import make_up_data
from tests.fl.data.domain_folder import tree

TWO = ("--num-clients=2",)
"""A client of each role: the others would be counted alone."""
ONE_CLASS = (
    *("--num-clients=2", "--data.max-train=2", "--partition.min-samples=1", "--rounds=1"),
    "--condensation.min-samples=1",
)
"""Each client has one class, which fills a batch as any other would."""
CELLS = {
    "table3": ("mnist-*-fedmho-md", TWO),
    "table4": ("*-fedmho-sd", TWO),
    "table5": ("*-fedmho-sd", TWO),
    "table6": ("*", TWO),
    "table8": ("*-fedcvae-ens", (*TWO, "--num-large=2")),
    "table9": ("*-fedmho", ("--num-clients=5", "--num-classifiers=4")),
    "loss-weights": ("*", TWO),
    "fig5": ("*-fedcvae-ens", TWO),
    "fig6": ("*-fedmho", TWO),
    "fig7": ("*-fedmho", TWO),
    "fig8": ("*-fedmho-sd", TWO),
    "fid": ("*", TWO),
    "fedaf": ("fmnist*-fedaf", ONE_CLASS),
    "fedaf-table2": (
        "*-fedaf",
        ("--data.max-train=6", "--partition.min-samples=1", "--condensation.min-samples=1"),
    ),
    "fedaf-table6": ("*-fedaf", ONE_CLASS),
    "hfldd-table5": ("*shufflenet*C10-fedavg", ("--num-clients=10", "--num-large=10")),
    "hfldd-fig7": ("*-50", ("--num-clients=10", "--groups=2", "--data.max-train=400")),
}
"""Which cell, and with how many clients and samples a rehearsal of it makes do. Where none is named
it is the first one, as it is."""


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_a_cell_of_every_table_runs_at_paper_scale(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_up_data(monkeypatch)
    pattern, less = CELLS.get(table, ("*", ()))
    folder = tree(tmp_path / "domains") if table == DOMAINS_TABLE else None
    cell = make(table, "paper", (pattern,), None, folder)[0]
    launch = parse([*cell.arguments, "--runtime=inprocess", *less])
    estimate = rehearse(launch, prepare(launch))
    assert 0 < estimate.seconds < float("inf")
