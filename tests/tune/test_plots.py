"""The pictures of a sweep: any distribution, and values outside of it."""

from fl.spaces import Uniform
from tune.report import effects


def test_there_is_a_panel_for_each_setting_with_a_point_for_each_trial() -> None:
    space = {name: Uniform(0, 1) for name in ("a", "b", "c", "d")}
    tried = [dict.fromkeys(space, value) for value in (0.1, 0.5, 0.9)]
    panels = [axes for axes in effects(space, tried, [0.3, 0.9, 0.6], 1).axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in panels] == [*space]
    for axes in panels:
        (dots,) = axes.collections
        assert sorted(map(tuple, dots.get_offsets())) == [(0.1, 0.3), (0.5, 0.9), (0.9, 0.6)]
