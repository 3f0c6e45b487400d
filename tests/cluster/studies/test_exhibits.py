"""The papers' figures, each drawn from made-up runs."""

from dataclasses import replace

import pytest

from cluster.studies.cells import TABLES
from cluster.studies.exhibits import EXHIBITS, place
from fl.report.style import png
from tests.cluster.studies.made_up import CURVES, figures
from tests.cluster.studies.test_suite_tables import hfldd, run_of


@pytest.mark.parametrize("name", EXHIBITS)
@pytest.mark.filterwarnings("error")
def test_every_figure_is_drawn_and_a_single_row_within_its_panel(name: str) -> None:
    found = figures(name)
    drawn = EXHIBITS[name].draw(found)
    methods, places = {f.cell.method for f in found}, {place(f) for f in found}
    assert len(drawn.axes) == len(places)
    for axes in drawn.axes:
        looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
        assert len(looks) == len(axes.get_lines()) == len(methods)
    drawn.draw_without_rendering()
    drawn = EXHIBITS[name].draw([f for f in found if f.cell.row == found[0].cell.row])
    drawn.draw_without_rendering()
    (axes,) = drawn.axes
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for line in axes.get_lines():
        points = [(x, y) for x, y in line.get_xydata() if x == x and y == y]
        assert all(left <= x <= right and low <= y <= high for x, y in points)


@pytest.mark.parametrize("name", ["fig5", "fid", "fedaf", "hfldd-fig7"])
def test_methods_of_the_users_own_are_drawn_and_told_beside_the_papers(name: str) -> None:
    first, *others = figures(name)
    own = [
        replace(first, cell=replace(first.cell, method=f"my-method-{number}"))
        for number in range(12)
    ]
    drawn = EXHIBITS[name].draw([first, *others, *own])
    (legend,) = drawn.legends
    named = {text.get_text() for text in legend.get_texts()}
    assert {figure.cell.method for figure in own} <= named
    looks = {(line.get_color(), line.get_linestyle()) for line in drawn.axes[0].get_lines()}
    assert len(looks) == len(drawn.axes[0].get_lines())
    assert EXHIBITS[name].describe([first, *own]) is not None


def test_curves_are_the_mean_within_the_range_of_the_seeds() -> None:
    (one, *_) = figures("fig6")
    (axes,) = EXHIBITS["fig6"].draw([one]).axes
    (line,) = axes.get_lines()
    assert line.get_ydata() == pytest.approx([0.3, 0.55, 0.8, 0.7])
    (band,) = axes.collections
    low, high = band.get_datalim(axes.transData).intervaly
    assert (low, high) == pytest.approx((0.3, max(map(max, CURVES))))


def test_a_curve_is_drawn_as_far_as_all_seeds_have_it() -> None:
    (one, *_) = figures("fig6")
    first, second = one.results
    stopped = first | {"accuracy_curve": first["accuracy_curve"][:1]}
    (axes,) = EXHIBITS["fig6"].draw([replace(one, results=(stopped, second))]).axes
    (line,) = axes.get_lines()
    assert line.get_ydata() == pytest.approx([0.3, 0.55])


def test_what_is_drawn_can_be_run_and_hfldds_further_pictures_have_names() -> None:
    assert EXHIBITS.keys() <= TABLES.keys()
    for name in (name for name in EXHIBITS if name.startswith("hfldd")):
        assert set(EXHIBITS[name].also) == ({"traffic", "clusters"} if name == "hfldd" else set())


def test_traffic_has_a_line_for_each_method_with_rounds() -> None:
    centralised = hfldd("centralised", {"accuracy": 0.9})
    found = [hfldd("hfldd", run_of(0.5, 0.7)), hfldd("fedavg", run_of(0.6, 0.96)), centralised]
    sheet = EXHIBITS["hfldd"].also["traffic"].draw(found)
    (axes,) = sheet.axes
    assert axes.get_yscale() == "log"
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert lines == {
        "hfldd": [[50, 2], [60, 5], [70, 5]],
        "fedavg": [[50, 2], [60, 2], [70, 5], [80, 5], [90, 5], [95, 5]],
    }
    assert png(sheet).startswith(b"\x89PNG")
