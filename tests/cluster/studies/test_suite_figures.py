"""The paper's figures from made-up runs: what their tables say, and that each is drawn."""

import re

import pytest

from cluster.studies.cells import make
from cluster.studies.comparison import Figure
from cluster.studies.suite_plots import EXHIBITS
from cluster.studies.suite_tables import epochs_to_target, tell_fid, tell_forgetting, tell_targets
from fl.report.style import png

CURVES = [[0.5, 0.7, 0.6], [0.6, 0.9, 0.8]]
"""Of two seeds, after a start at 0.3."""


def figures(name: str) -> list[Figure]:
    """The cells for two alphas, all with the same two runs."""
    results = tuple(
        {
            "accuracy": curve[-1],
            "start_accuracy": 0.3,
            "accuracy_curve": curve,
            "protocol": "one-shot",
            "fid": {"kept": 12.5, "noise": 99.0, "real": 0.25, "features": "a network"},
        }
        for curve in CURVES
    )
    return [Figure(c, results) for c in make(name, "paper") if "alpha0.3" not in c.row]


def test_epochs_to_a_target_are_the_mean_over_seeds_and_all_must_reach_it() -> None:
    figure = figures("fig5")[0]
    assert epochs_to_target(figure, 0.3) == 0
    assert epochs_to_target(figure, 0.6) == 1.5
    assert epochs_to_target(figure, 0.8) is None
    lines = tell_targets([figure])
    assert lines[2].endswith("| 60 % | 65 % | 70 % |")
    assert lines[4].endswith("| 1.5 | 2.0 | 2.0 |")


def test_forgetting_is_the_mean_curves_fall_from_its_best_epoch() -> None:
    assert tell_forgetting(figures("fig6"))[4].endswith("| 30.00 | 80.00 | 2 | 70.00 | 10.00 |")


def test_distances_stand_between_the_ends_of_their_scale_and_name_their_network() -> None:
    told = tell_fid(figures("fid"))
    assert "a network" in told[0]
    assert told[4] == "| Gaussian noise | 99 | 360.53 |"
    assert told[5] == "| 10 epochs | 12.5 ± 0 | 145.71 |"
    assert told[-1].startswith("| real, two halves | 0.25 |")
    assert len(told) == 4 + 1 + 5 + 1


@pytest.mark.parametrize("name", EXHIBITS)
def test_every_figure_is_drawn(name: str) -> None:
    drawn = EXHIBITS[name].draw(figures(name))
    lines = [line for axes in drawn.axes for line in axes.get_lines()]
    methods = {figure.cell.method for figure in figures(name)}
    places = {re.match(r"\w+-alpha[\d.]+", figure.cell.row)[0] for figure in figures(name)}  # type: ignore[index]
    assert len(drawn.axes) == len(places)
    assert len(lines) == len(methods) * len(places)
    assert png(drawn).startswith(b"\x89PNG")


@pytest.mark.parametrize("name", EXHIBITS)
@pytest.mark.filterwarnings("error")
def test_a_single_row_is_drawn_within_its_panel(name: str) -> None:
    """As with --only."""
    first, *others = figures(name)
    drawn = EXHIBITS[name].draw([first, *(f for f in others if f.cell.row == first.cell.row)])
    drawn.draw_without_rendering()
    (axes,) = drawn.axes
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for line in axes.get_lines():
        points = [(x, y) for x, y in line.get_xydata() if x == x and y == y]
        assert all(left <= x <= right and low <= y <= high for x, y in points)
