import math
from collections.abc import Callable
from typing import Any

import pytest

from fl.errors import UserError
from fl.validate import at_least, choice, fraction, positive


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (lambda v: choice("model", v, ("cnn", "vgg9")), "vgg9"),
        (lambda v: at_least("epochs", v, 1), 1),
        (lambda v: at_least("epochs", v, 1), 10**9),
        (lambda v: positive("lr", v), 1e-300),
        (lambda v: fraction("keep", v), 1),
        (lambda v: fraction("keep", v), 1e-9),
    ],
)
def test_what_is_allowed_passes(check: Callable[[Any], None], value: Any) -> None:
    assert check(value) is None


@pytest.mark.parametrize("value", [0, -1])
def test_too_small_a_number_is_refused(value: int) -> None:
    with pytest.raises(UserError, match=f"^epochs must be at least 1, got {value}$"):
        at_least("epochs", value, 1)


@pytest.mark.parametrize("value", [0, -0.5, math.inf, -math.inf, math.nan])
def test_only_finite_numbers_above_zero_are_positive(value: float) -> None:
    with pytest.raises(UserError, match=f"^lr must be a positive number, got {value}$"):
        positive("lr", value)


@pytest.mark.parametrize("value", [0, -0.1, 1.0001, math.inf, math.nan])
def test_a_fraction_is_above_zero_and_at_most_one(value: float) -> None:
    with pytest.raises(UserError, match=rf"^keep must be in \(0, 1\], got {value}$"):
        fraction("keep", value)


def test_an_unknown_choice_is_told_the_valid_ones() -> None:
    with pytest.raises(UserError, match=r"^unknown model 'cnm'; valid: cnn, vgg9$"):
        choice("model", "cnm", iter(["vgg9", "cnn"]))
