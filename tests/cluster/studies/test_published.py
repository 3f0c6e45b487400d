"""The papers' figures are what was printed, where it was printed."""

import pytest

from cluster.studies import published
from cluster.studies.cells import VARIATIONS
from cluster.studies.published import (
    DOMAINNET,
    FEDAF,
    FEDAF_2,
    FID_XI,
    TABLE_3,
    TABLE_6,
    TABLE_8,
    TABLE_XI,
    Published,
    rows,
)
from fl.methods.registry import METHODS

ALL = {name: text for name, text in vars(published).items() if str(text).startswith("\ndataset")}


def test_published_tables_have_their_figures_where_they_belong() -> None:
    table = {row.name: row.figures for row in rows(TABLE_3)}
    assert len(table) == 12
    assert table["mnist-alpha0.1"]["fedcvae-ens"] == Published(89.73, 0.40)
    assert table["emnist-alpha0.3"]["fedmho-sd"] == Published(75.36, 0.51)
    last = rows(TABLE_8)[5]
    assert (last.name, last.figures["feddf"]) == ("fmnist-alpha0.1", Published(51.10, 1.98))
    assert rows(TABLE_6)[-1].settings == {"alpha": "0.1", "keep": "0.9"}


@pytest.mark.parametrize("name", ALL)
def test_every_table_has_rows_of_their_own_and_methods_that_there_are(name: str) -> None:
    found = rows(ALL[name])
    assert len({row.name for row in found}) == len(found)
    for row in found:
        assert row.figures.keys() <= METHODS.keys() | VARIATIONS.keys()
        printed = [figure for figure in row.figures.values() if figure]
        assert printed
        for figure in printed:
            assert 0 < figure.mean < 100
            assert figure.spread is None or 0 < figure.spread < 10


def test_where_the_paper_prints_nothing_there_is_no_figure() -> None:
    (row,) = (row for row in rows(FEDAF) if row.name == "cifar100-alpha0.02")
    assert row.figures["fedaf-without-cdc"] is None
    assert row.figures["feddm"] == Published(44.15, 0.30)


@pytest.mark.parametrize(
    ("method", "printed"),
    zip(FEDAF_2, (42.01, 42.94, 42.08, 43.81, 47.95, 40.15, 52.62, 54.68), strict=True),
)
def test_the_mean_over_domains_is_the_printed_one(method: str, printed: float) -> None:
    assert len(FEDAF_2[method]) == len(DOMAINNET)
    assert sum(FEDAF_2[method]) / 6 == pytest.approx(printed, abs=0.011)


def test_distances_are_those_of_the_rows_with_as_many_epochs() -> None:
    assert [row.settings["generator.epochs"] for row in rows(TABLE_XI)] == list(FID_XI)
    assert rows(TABLE_XI)[0].figures["fedmho-md"] == Published(67.55)
