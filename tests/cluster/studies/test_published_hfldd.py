"""HFLDD's printed figures: every table is whole, and what is printed twice is the same."""

from cluster.studies.published import rows
from cluster.studies.published_hfldd import (
    FIGURE_3,
    TABLE_V,
    TABLE_VI,
    TABLES_II_TO_IV,
    TARGETS,
)


def test_every_data_set_has_every_number_of_classes() -> None:
    for table in (FIGURE_3, TABLE_VI):
        found = [(row.dataset, row.settings["C"]) for row in rows(table)]
        assert found == [(d, c) for d in ("mnist", "cifar10", "cinic10") for c in ("1", "2", "10")]
    assert len(rows(TABLE_V)) == 9


def test_table_6_at_ten_groups_is_figure_3_but_for_what_the_paper_prints_twice() -> None:
    differ = {}
    for one, other in zip(rows(FIGURE_3), rows(TABLE_VI), strict=True):
        text, table = one.figures["hfldd"], other.figures["hfldd-K10"]
        assert text is not None
        assert table is not None
        if text.mean != table.mean:
            differ[one.name] = (text.mean, table.mean)
    assert differ == {"cinic10-C1": (56.7, 56.5)}


def test_every_cell_of_tables_2_to_4_has_its_target() -> None:
    assert TABLES_II_TO_IV.keys() == TARGETS.keys()
    for dataset, row in TABLES_II_TO_IV.items():
        assert row.keys() == {"hfldd", "fedavg", "fedprox", "fedseq", "dynafed"}
        assert all(cell.accuracy >= TARGETS[dataset] for cell in row.values())
