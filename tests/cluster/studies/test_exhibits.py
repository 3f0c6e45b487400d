"""The papers' figures, each drawn from made-up runs, and told in tables of numbers."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.studies.cells import TABLES, make
from cluster.studies.comparison import Figure, as_markdown, published
from cluster.studies.exhibits import (
    EXHIBITS,
    describe_clients,
    describe_domains,
    describe_fid,
    describe_forgetting,
    describe_hfldd,
    describe_rounds,
    describe_targets,
    epochs_to_target,
    over_time,
    place,
    until,
)
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
            "best_accuracy": max(curve),
            "bytes_up": 3 * 2**19,
            "protocol": "one-shot",
            "per_domain_accuracy": dict.fromkeys(published()["fedaf-table2"]["domains"], curve[-1]),
            "fid": {"kept": 12.5, "noise": 99.0, "real": 0.25, "features": "a network"},
        }
        for curve in CURVES
    )
    return [Figure(c, results) for c in TABLES[name]("paper") if "alpha0.3" not in c.row]


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


# What the paper's figures show, as tables of numbers, from made-up runs.


def test_epochs_to_a_target_are_the_mean_over_seeds_and_all_must_reach_it() -> None:
    figure = figures("fig5")[0]
    assert epochs_to_target(figure, 0.3) == 0
    assert epochs_to_target(figure, 0.6) == 1.5
    assert epochs_to_target(figure, 0.8) is None
    lines = describe_targets([figure])
    assert lines[2].endswith("| 60 % | 65 % | 70 % |")
    assert lines[4].endswith("| 1.5 | 2.0 | 2.0 |")


def test_epochs_are_those_that_were_tested() -> None:
    first, *_ = figures("fig6")
    tested = tuple({**run, "curve_epochs": [5, 10, 12]} for run in first.results)
    figure = replace(first, results=tested)
    assert epochs_to_target(figure, 0.7) == 10
    assert [epoch for epoch, _ in over_time([figure])] == [0, 5, 10, 12]
    assert "| 10 |" in describe_forgetting([figure])[-1]


def test_forgetting_is_the_mean_curves_fall_from_its_best_epoch() -> None:
    assert describe_forgetting(figures("fig6"))[4].endswith("| 30.00 | 80.00 | 2 | 70.00 | 10.00 |")


def test_distances_stand_between_the_ends_of_their_scale_and_name_their_network() -> None:
    told = describe_fid(figures("fid"))
    assert "a network" in told[0]
    assert told[4] == "| Gaussian noise | 99 | 360.53 |"
    assert told[5] == "| 10 epochs | 12.5 ± 0 | 145.71 |"
    assert told[-1].startswith("| real, two halves | 0.25 |")
    assert len(told) == 4 + 1 + 5 + 1


def test_the_best_round_stands_beside_the_last_and_beside_the_papers_best() -> None:
    told = describe_rounds(figures("fedaf"))
    (line,) = (line for line in told if line.startswith("| cifar10-alpha0.1 | fedaf |"))
    row = "| cifar10-alpha0.1 | fedaf | 70.00 ± 14.14 | 80.00 ± 14.14 | 69.11 ± 0.86 | 1.50 |"
    assert line == row
    (line,) = (line for line in told if line.startswith("| fmnist-alpha0.1 | fedaf-without-cdc |"))
    assert line.endswith("| - | 1.50 |")


def test_each_domain_has_a_column_and_the_papers_stands_below() -> None:
    told = describe_domains(figures("fedaf-table2"))
    assert (
        told[2] == "| Method | clipart | infograph | painting | quickdraw | real | sketch | Mean |"
    )
    (number,) = (n for n, line in enumerate(told) if line.startswith("| moon |"))
    assert told[number].endswith("| 70.00 ± 14.14 | 70.00 ± 14.14 |")
    assert told[number + 1] == "| paper | 48.80 | 37.97 | 56.26 | 48.07 | 42.02 | 29.72 | 43.81 |"
    other = {"per_domain_accuracy": {"mine": 0.5, "yours": 0.25}}
    told = describe_domains([replace(figures("fedaf-table2")[0], results=(other,))])
    assert told[4:] == ["| fedavg | 50.00 | 25.00 | 37.50 |"]


def scored(method: str, *accuracies: float | None, sent: int = 0) -> Figure:
    """A cell of one row with two equal runs, whose clients reached these accuracies."""
    (cell,) = [c for c in TABLES["fedd2s-table2"]("small") if c.name == f"mnist-alpha0.5-{method}"]
    there = [a for a in accuracies if a is not None]
    result = {
        "accuracy": sum(there) / len(there),
        "ua": 0.5,
        "client_accuracy": list(accuracies),
        "client_scores": {"mean": 0.7, "spread": 0.125, "worst_tenth": 0.25},
        "bytes_up": sent,
        "fedavg_bytes_up": 2**20,
    }
    return Figure(cell, tuple(result | {"seed": seed} for seed in (0, 1)))


def test_clients_below_training_alone_are_counted_over_seeds() -> None:
    alone = scored("local", 0.5, 0.5, None, 0.5)
    ours = scored("fedd2s", 0.6, 0.4, 0.1, 0.5, sent=3 * 2**19)
    told = describe_clients([alone, ours])
    row = "mnist-alpha0.5"
    assert told[-2] == f"| {row} | local | 70.00 | 12.50 | 25.00 | - | 0.00 | 0.00 |"
    assert told[-1] == f"| {row} | fedd2s | 70.00 | 12.50 | 25.00 | 2 of 6 | 1.50 | 1.50 |"
    assert "| 2 of 6 |" not in describe_clients([ours])[-1]


def test_clients_are_compared_with_those_alone_of_the_same_seed_where_others_failed() -> None:
    alone, ours = scored("local", 0.9, 0.9), scored("fedd2s", 0.95, 0.8)
    lost = replace(alone, results=alone.results[1:], failed=("seed 0: it failed",))
    assert "| 1 of 2 |" in describe_clients([lost, ours])[-1]
    assert "| 1 of 2 |" in describe_clients([alone, replace(ours, results=ours.results[:1])])[-1]


def test_a_table_of_clients_is_of_their_ua_and_has_no_column_of_the_paper() -> None:
    table = as_markdown("fedd2s-table2", "small", [0, 1], [scored("local", 0.9)])
    assert "| Row | Method | UA, % | Rank |" in table
    assert "| mnist-alpha0.5 | local | 50.00 ± 0.00 | - |" in table


MIB = 2**20


def run_of(*accuracies: float, up: int = 2, down: int = 1, peer: int = 0) -> dict[str, Any]:
    """Two MiB up and one down in each round; between clients in the first alone."""
    rounds = [
        {
            "round": number,
            "accuracy": accuracy,
            "bytes_up": up * MIB,
            "bytes_down": down * MIB if number > 1 else 0,
            "bytes_peer": peer * MIB if number == 1 else 0,
        }
        for number, accuracy in enumerate(accuracies, start=1)
    ]
    return {"per_round": rounds, "accuracy": accuracies[-1], "clusters": [[0, 1, 2], [3]]}


def hfldd(method: str, *results: dict[str, Any], classes: int = 10) -> Figure:
    (cell,) = make("hfldd", "paper", (f"mnist-C{classes}-{method}",))
    return Figure(cell, results)


def test_traffic_is_all_that_was_sent_up_to_the_round_that_reaches_the_accuracy() -> None:
    found = hfldd("hfldd", run_of(0.5, 0.79, 0.8, peer=4), run_of(0.9, 0.9, 0.9, peer=4))
    assert until(found, 0.8) == (2.0, pytest.approx(((3 * 2 + 2 + 4) + (2 + 4)) / 2))
    assert until(found, 0.85) is None  # one seed never has it


def test_tables_2_to_4_are_of_iid_clients_and_beside_the_papers() -> None:
    told = describe_hfldd(
        [
            hfldd("hfldd", run_of(0.7, 0.85)),
            hfldd("fedavg", run_of(0.1, 0.2, 0.8, up=4)),
            hfldd("fedavg", run_of(0.1, 0.9), classes=1),
        ]
    )
    assert "| mnist-C10 | hfldd | 80 % | 2.0 | 5.00 | 1.0 | 5 | 58.80 | 1.0 |" in told
    assert "| mnist-C10 | fedavg | 80 % | 3.0 | 14.00 | 2.8 | 17 | 593.15 | 10.1 |" in told
    assert not any(line.startswith("| mnist-C1 | fedavg | 80 %") for line in told)
    assert "| mnist-C1 | fedavg | 5.00 | 5.00 | 5.00 | 5.00 | 5.00 |" in told  # up to 90 percent
