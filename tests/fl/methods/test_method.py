"""Distributions of a sweep's settings: their grids, and ranges that are none."""

import math
from dataclasses import replace
from typing import Any

import pytest

from fl.errors import UserError
from fl.methods.method import Choice, Integers, LogUniform, Spaces, Uniform
from fl.methods.registry import METHODS


@pytest.mark.parametrize(
    ("distribution", "grid"),
    [
        (Uniform(0.4, 1.0), (0.4, 0.7, 1.0)),
        (LogUniform(1e-5, 1e-3), (1e-5, 1e-4, 1e-3)),
        (Integers(1, 2), (1, 2)),
        (Integers(2, 20), (2, 11, 20)),
        (Choice(("a", "b")), ("a", "b")),
    ],
)
def test_a_grid_has_the_ends_and_the_middle(distribution: Any, grid: tuple[Any, ...]) -> None:
    assert distribution.grid == pytest.approx(grid) or distribution.grid == grid


@pytest.mark.parametrize("kind", [Uniform, LogUniform, Integers])
@pytest.mark.parametrize("ends", [(2, 1), (1, 1), (math.nan, 1), (1, math.inf)])
def test_a_range_has_two_ends_the_lower_first(kind: Any, ends: tuple[float, float]) -> None:
    with pytest.raises(UserError, match=r"^a range needs a lower and a higher end, got"):
        kind(*ends)


def test_ratios_need_numbers_above_zero_and_integers_whole_ones() -> None:
    with pytest.raises(UserError, match=r"^a loguniform range must lie above 0, got 0$"):
        LogUniform(0, 1)
    with pytest.raises(UserError, match=r"^integers need whole ends, got 1.5 and 3$"):
        Integers(1.5, 3)  # type: ignore[arg-type]
    assert Integers(1.0, 3.0).grid == (1, 2, 3)  # type: ignore[arg-type]


def test_a_choice_is_of_plain_values() -> None:
    with pytest.raises(UserError, match=r"^a choice needs at least one value$"):
        Choice(())
    with pytest.raises(
        UserError, match=r"^a choice takes numbers, words, true and false, got None"
    ):
        Choice((1, None))  # type: ignore[arg-type]


def test_both_spaces_at_once_have_the_settings_of_either() -> None:
    spaces = Spaces(server={"keep": Uniform(0, 1)}, local={"lr": LogUniform(1e-3, 1)})
    named = spaces.named()
    assert named["both"] == {**named["server"], **named["local"]}
    assert (set(named["server"]), set(named["local"])) == ({"keep"}, {"lr"})


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_offers_to_sweep_are_settings_that_it_takes(name: str) -> None:
    """Each value of each grid, in the record itself."""
    config = METHODS[name].config()
    for setting, distribution in METHODS[name].spaces.named()["both"].items():
        for value in distribution.grid:
            changed = with_setting(config, setting.split("."), value)
            for part in setting.split("."):
                changed = getattr(changed, part)
            assert changed == value


def with_setting(record: Any, path: list[str], value: object) -> Any:
    first, *rest = path
    return replace(
        record, **{first: with_setting(getattr(record, first), rest, value) if rest else value}
    )
