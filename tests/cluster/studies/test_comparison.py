"""Our figures beside the paper's: ranks, differences, and what the seeds cannot tell."""

import pytest

from cluster.studies.cells import Cell
from cluster.studies.comparison import Figure, as_json, as_markdown, remarks, shown
from cluster.studies.published import Published


def figure(
    method: str, *accuracies: float, row: str = "mnist-alpha0.5", paper: float = 90
) -> Figure:
    results = [{"accuracy": accuracy, "protocol": "one-shot"} for accuracy in accuracies]
    return Figure(Cell(row, method, (), Published(paper, 1.0)), tuple(results))


def test_the_table_stands_beside_the_papers() -> None:
    figures = [
        figure("fedavg", 0.80, 0.84, paper=85.91),
        figure("dense", 0.90, 0.92, paper=90.51),
    ]
    lines = as_markdown("table3", "small", [0, 1], figures).splitlines()
    assert "| mnist-alpha0.5 | fedavg | 82.00 ± 2.83 | 85.91 ± 1.00 | -3.91 | 2 | 2 |" in lines
    assert "| mnist-alpha0.5 | dense | 91.00 ± 1.41 | 90.51 ± 1.00 | +0.49 | 1 | 1 |" in lines
    told = as_json("table3", "small", [0, 1], figures)["cells"][0]
    assert told["accuracies"] == pytest.approx([80, 84])
    assert (told["paper_mean"], told["mean"]) == (85.91, pytest.approx(82))


def test_methods_that_the_seeds_do_not_separate_are_named() -> None:
    near = [figure("a", 0.90, 0.92, 0.91), figure("b", 0.91, 0.90, 0.915)]
    far = [figure("a", 0.90, 0.92, 0.91), figure("b", 0.70, 0.725, 0.705)]
    (remark,) = remarks(near)
    assert "3 seeds do not separate" in remark
    assert remarks(far) == ["The seeds separate all neighbours in every row (paired t-test, 5 %)."]
    assert remarks([figure("a", 0.9), figure("b", 0.8)])[0].startswith("One seed")


def test_equal_methods_are_not_separated_and_constant_differences_are() -> None:
    same = [figure("a", 0.9, 0.8), figure("b", 0.9, 0.8)]
    assert "p = 1.00" in remarks(same)[0]
    assert "separate all" in remarks([figure("a", 0.75, 0.5), figure("b", 0.5, 0.25)])[0]


def test_rows_are_ranked_each_by_itself() -> None:
    figures = [figure("a", 0.1, 0.1), figure("b", 0.9, 0.9, row="other")]
    table = as_markdown("table3", "small", [0, 1], figures)
    assert table.count("| 1 | 1 |") == 2


def test_equal_means_share_a_rank_and_one_seed_has_no_spread() -> None:
    figures = [figure("a", 0.5), figure("b", 0.25), figure("c", 0.5)]
    lines = as_markdown("table3", "small", [0], figures).splitlines()
    told = [line.split(" | ")[1:6:4] for line in lines if line.startswith("| mnist")]
    assert told == [["a", "1"], ["b", "3"], ["c", "1"]]
    assert "| mnist-alpha0.5 | b | 25.00 | 90.00 ± 1.00 | -65.00 | 3 | 1 |" in lines
    assert shown(12.345, None) == "12.35" == shown(12.345, 0.0)[:5]


def test_what_the_paper_does_not_print_has_neither_difference_nor_rank() -> None:
    silent = Figure(Cell("row", "b", ()), ({"accuracy": 0.5, "protocol": "one-shot"},))
    lines = as_markdown("table3", "small", [0], [figure("a", 0.25, row="row"), silent])
    assert "| row | b | 50.00 | - | - | 1 | - |" in lines
    assert "| row | a | 25.00 | 90.00 ± 1.00 | -65.00 | 2 | 1 |" in lines
    (cell,) = as_json("table3", "small", [0], [silent])["cells"]
    assert (cell["paper_mean"], cell["paper_spread"], cell["spread"]) == (None, None, None)
