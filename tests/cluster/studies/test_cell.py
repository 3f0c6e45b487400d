"""The papers' figures are what was printed, where it was printed."""

import pytest

from cluster.studies.comparison import Published, published, rows
from fl.methods.registry import METHODS

FEDMHO_AND_FEDAF = [
    *("table3", "table4", "table5", "table6", "loss-weights", "table8", "table9", "fid"),
    *("fedaf", "fedaf-table6"),
]
DOMAINS = published()["fedaf-table2"]


def test_published_tables_have_their_figures_where_they_belong() -> None:
    table = {row.name: row.figures for row in rows("table3")}
    assert len(table) == 12
    assert table["mnist-alpha0.1"]["fedcvae-ens"] == Published(89.73, 0.40)
    assert table["emnist-alpha0.3"]["fedmho-sd"] == Published(75.36, 0.51)
    last = rows("table8")[5]
    assert (last.name, last.figures["feddf"]) == ("fmnist-alpha0.1", Published(51.10, 1.98))
    assert rows("table6")[-1].settings == {"alpha": "0.1", "keep": "0.9"}


@pytest.mark.parametrize("name", FEDMHO_AND_FEDAF)
def test_every_table_has_rows_of_their_own_and_methods_that_there_are(name: str) -> None:
    found = rows(name)
    assert len({row.name for row in found}) == len(found)
    for row in found:
        assert all(method.startswith(tuple(METHODS)) for method in row.figures)
        printed = [figure for figure in row.figures.values() if figure]
        assert printed
        for figure in printed:
            assert 0 < figure.mean < 100
            assert figure.spread is None or 0 < figure.spread < 10


def test_where_the_paper_prints_nothing_there_is_no_figure() -> None:
    (row,) = (row for row in rows("fedaf") if row.name == "cifar100-alpha0.02")
    assert row.figures["fedaf-without-cdc"] is None
    assert row.figures["feddm"] == Published(44.15, 0.30)


@pytest.mark.parametrize(
    ("method", "printed"),
    zip(DOMAINS["methods"], (42.01, 42.94, 42.08, 43.81, 47.95, 40.15, 52.62, 54.68), strict=True),
)
def test_the_mean_over_domains_is_the_printed_one(method: str, printed: float) -> None:
    figures = DOMAINS["methods"][method]
    assert len(figures) == len(DOMAINS["domains"])
    assert sum(figures) / 6 == pytest.approx(printed, abs=0.011)


def test_distances_are_those_of_the_rows_with_as_many_epochs() -> None:
    assert [row.settings["generator.epochs"] for row in rows("fid")] == list(
        published()["fid-distances"]
    )
    assert rows("fid")[0].figures["fedmho-md"] == Published(67.55)


def test_hfldds_data_sets_have_every_number_of_classes() -> None:
    for table in ("hfldd", "hfldd-table6"):
        found = [(row.dataset, row.settings["C"]) for row in rows(table)]
        assert found == [(d, c) for d in ("mnist", "cifar10", "cinic10") for c in ("1", "2", "10")]
    assert len(rows("hfldd-table5")) == 9


def test_hfldds_table_6_at_ten_groups_is_figure_3_but_for_what_the_paper_prints_twice() -> None:
    differ = {}
    for one, other in zip(rows("hfldd"), rows("hfldd-table6"), strict=True):
        text, table = one.figures["hfldd"], other.figures["hfldd-K10"]
        assert text is not None
        assert table is not None
        if text.mean != table.mean:
            differ[one.name] = (text.mean, table.mean)
    assert differ == {"cinic10-C1": (56.7, 56.5)}


def test_every_cell_of_hfldds_tables_2_to_4_has_its_target() -> None:
    for table in published()["hfldd-traffic"].values():
        assert table["methods"].keys() == {"hfldd", "fedavg", "fedprox", "fedseq", "dynafed"}
        assert all(cell["accuracy"] >= table["target"] for cell in table["methods"].values())
