"""How lines look, and which panel a cell is in."""

import pytest

from cluster.studies.cells import TABLES
from cluster.studies.comparison import Figure
from cluster.studies.looks import look, place


def figures(name: str) -> list[Figure]:
    return [Figure(cell, ()) for cell in TABLES[name]("paper")]


@pytest.mark.parametrize("name", ["fedaf", "hfldd", "hfldd-table5", "hfldd-table6", "hfldd-fig7"])
def test_lines_of_a_panel_differ(name: str) -> None:
    looks: dict[str, list[tuple[str, str]]] = {}
    for figure in figures(name):
        own = look(figure)
        looks.setdefault(place(figure), []).append((str(own["color"]), own["linestyle"]))
    for found in looks.values():
        assert len(set(found)) == len(found)


def test_a_panel_is_named_by_data_set_model_and_partition() -> None:
    found = {place(figure) for figure in figures("hfldd-table5")}
    assert len(found) == 9
    assert "cifar10, resnet18, IID" in found
    assert {place(figure) for figure in figures("fig6")} == {
        f"emnist, Dir({alpha})" for alpha in ("0.5", "0.3", "0.1")
    }
    assert "cinic10, 2 classes per client" in {place(figure) for figure in figures("hfldd")}
    assert {place(figure) for figure in figures("fedaf-table2")} == {"a client per domain"}
