"""The pictures of a sweep: any distribution, and values outside of it."""

from typing import Any

import pytest
from matplotlib.colors import to_hex

from fl.report import style
from fl.spaces import Choice, Integers, LogUniform, Uniform
from tune.report import effects, parallel_coordinates


@pytest.mark.parametrize("distribution", [Choice(("a", "b")), Choice((1,)), Integers(1, 4)])
def test_pictures_take_any_distribution_and_values_outside(distribution: Any) -> None:
    values = list(distribution.grid)
    outside: Any = "c" if isinstance(values[0], str) else 9
    space = {"x": distribution, "$y": LogUniform(1e-3, 1.0)}
    tried = [{"x": v, "$y": 0.01} for v in (*values, outside)]
    scores = [0.5] * len(tried)
    for figure in (parallel_coordinates(space, tried, scores, 0), effects(space, tried, scores, 0)):
        figure.canvas.draw()


def test_every_trial_is_a_line_from_its_settings_to_its_score() -> None:
    space = {"a": Uniform(0, 1), "b": LogUniform(1e-4, 1.0)}
    tried = [{"a": 0.25, "b": 1e-2}, {"a": 1.0, "b": 1.0}]
    (axes,) = parallel_coordinates(space, tried, [0.6, 0.8], best=1).axes
    lines = sorted(tuple(map(float, line.get_ydata())) for line in axes.lines)
    assert lines == [pytest.approx((0.25, 0.5, 0.0)), pytest.approx((1.0, 1.0, 1.0))]


def test_what_lies_outside_of_the_space_is_drawn_at_its_end() -> None:
    """The default configuration may be no value of the space."""
    space = {"a": Uniform(0, 1), "b": LogUniform(1e-4, 1.0), "c": Choice((10, 20, 40))}
    tried = [{"a": 3.0, "b": 0.0, "c": 19}, {"a": -1.0, "b": 9.0, "c": 99}]
    (axes,) = parallel_coordinates(space, tried, [0.6, 0.8], best=1).axes
    lines = sorted(tuple(map(float, line.get_ydata())) for line in axes.lines)
    # Of a choice of numbers it stands at the nearest one.
    assert lines == [pytest.approx((0.0, 1.0, 1.0, 1.0)), pytest.approx((1.0, 0.0, 0.5, 0.0))]


def test_there_is_a_panel_for_each_setting_with_a_point_for_each_trial() -> None:
    space = {name: Uniform(0, 1) for name in ("a", "b", "c", "d")}
    tried = [dict.fromkeys(space, value) for value in (0.1, 0.5, 0.9)]
    panels = [axes for axes in effects(space, tried, [0.3, 0.9, 0.6], 1).axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in panels] == [*space]
    for axes in panels:
        points = [tuple(dots.get_offsets()[0]) for dots in axes.collections]
        assert sorted(points) == [(0.1, 0.3), (0.5, 0.9), (0.9, 0.6)]


def test_the_best_trial_is_drawn_last_and_in_a_colour_of_its_own() -> None:
    tried = [{"a": 0.2}, {"a": 0.4}, {"a": 0.6}]
    # By loss another trial may be the best than by accuracy.
    (axes,) = parallel_coordinates({"a": Uniform(0, 1)}, tried, [0.9, 0.5, 0.7], best=1).axes
    colours = [to_hex(line.get_color()) for line in axes.lines]
    assert colours.index(to_hex(style.BEST)) == 2
    assert colours.count(to_hex(style.BEST)) == 1
    assert float(axes.lines[-1].get_ydata()[0]) == pytest.approx(0.4)


def test_a_choices_numbers_stand_by_size_with_the_defaults_among_them() -> None:
    space = {"a": Choice((2000, 6000, 12000)), "b": Choice(("x", "w"))}
    tried = [{"a": 3000, "b": "x"}, {"a": 12000, "b": "y"}]
    numbers, words = effects(space, tried, [0.6, 0.8], 1).axes[:2]
    assert [t.get_text() for t in numbers.get_xticklabels()] == ["2000", "3000", "6000", "12000"]
    assert [t.get_text() for t in words.get_xticklabels()] == ["x", "w", "y"]
