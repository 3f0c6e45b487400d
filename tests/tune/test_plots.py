"""The pictures of a sweep: any distribution, and values outside of it."""

from typing import Any

import pytest
from matplotlib.colors import to_hex

from fl.report import style
from fl.spaces import Choice, Integers, LogUniform, Uniform
from tune.report import effects


@pytest.mark.parametrize("distribution", [Choice(("a", "b")), Choice((1,)), Integers(1, 4)])
def test_pictures_take_any_distribution_and_values_outside(distribution: Any) -> None:
    values = list(distribution.grid)
    outside: Any = "c" if isinstance(values[0], str) else 9
    space = {"x": distribution, "$y": LogUniform(1e-3, 1.0)}
    tried = [{"x": v, "$y": 0.01} for v in (*values, outside)]
    scores = [0.5] * len(tried)
    effects(space, tried, scores, 0).canvas.draw()


def test_there_is_a_panel_for_each_setting_with_a_point_for_each_trial() -> None:
    space = {name: Uniform(0, 1) for name in ("a", "b", "c", "d")}
    tried = [dict.fromkeys(space, value) for value in (0.1, 0.5, 0.9)]
    panels = [axes for axes in effects(space, tried, [0.3, 0.9, 0.6], 1).axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in panels] == [*space]
    for axes in panels:
        (dots,) = axes.collections
        assert sorted(map(tuple, dots.get_offsets())) == [(0.1, 0.3), (0.5, 0.9), (0.9, 0.6)]


def test_the_best_trial_is_drawn_last_and_in_a_colour_of_its_own() -> None:
    tried = [{"a": 0.2}, {"a": 0.4}, {"a": 0.6}]
    # By loss another trial may be the best than by accuracy.
    axes, *_ = effects({"a": Uniform(0, 1)}, tried, [0.9, 0.5, 0.7], best=1).axes
    (dots,) = axes.collections
    colours = [to_hex(colour) for colour in dots.get_facecolors()]
    assert colours.index(to_hex(style.BEST)) == 2
    assert colours.count(to_hex(style.BEST)) == 1
    assert tuple(dots.get_offsets()[-1]) == (0.4, 0.5)


def test_a_choices_numbers_stand_by_size_with_the_defaults_among_them() -> None:
    space = {"a": Choice((2000, 6000, 12000)), "b": Choice(("x", "w"))}
    tried = [{"a": 3000, "b": "x"}, {"a": 12000, "b": "y"}]
    numbers, words = effects(space, tried, [0.6, 0.8], 1).axes[:2]
    assert [t.get_text() for t in numbers.get_xticklabels()] == ["2000", "3000", "6000", "12000"]
    assert [t.get_text() for t in words.get_xticklabels()] == ["x", "w", "y"]
