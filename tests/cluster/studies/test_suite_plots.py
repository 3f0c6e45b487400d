"""The paper's figures, each drawn from made-up runs."""

from dataclasses import replace

import pytest

from cluster.studies.exhibits import EXHIBITS
from cluster.studies.looks import place
from fl.report.style import png
from tests.cluster.studies.made_up import CURVES, figures


@pytest.mark.parametrize("name", EXHIBITS)
def test_every_figure_is_drawn(name: str) -> None:
    drawn = EXHIBITS[name].draw(figures(name))
    lines = [line for axes in drawn.axes for line in axes.get_lines()]
    methods = {figure.cell.method for figure in figures(name)}
    places = {place(figure) for figure in figures(name)}
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


def test_all_lines_of_a_panel_look_different() -> None:
    (axes, *_) = EXHIBITS["fedaf"].draw(figures("fedaf")).axes
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
    assert len(looks) == len(axes.get_lines()) == 10


def test_a_line_with_no_reached_target_is_drawn_empty_and_named() -> None:
    """Its method still stands in the legend."""
    (one, *_) = figures("fig5")
    poor = replace(one, results=({"start_accuracy": 0.0, "accuracy_curve": [0.0]},))
    (axes,) = EXHIBITS["fig5"].draw([poor]).axes
    (line,) = axes.get_lines()
    assert (len(line.get_xdata()), line.get_label()) == (0, one.cell.method)


def test_curves_are_the_mean_within_the_range_of_the_seeds() -> None:
    (one, *_) = figures("fig6")
    (axes,) = EXHIBITS["fig6"].draw([one]).axes
    (line,) = axes.get_lines()
    assert line.get_ydata() == pytest.approx([0.3, 0.55, 0.8, 0.7])
    (band,) = axes.collections
    low, high = band.get_datalim(axes.transData).intervaly
    assert (low, high) == pytest.approx((0.3, max(map(max, CURVES))))
