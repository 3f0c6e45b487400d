import math
from collections.abc import Callable
from typing import Any

import pytest

from fl.errors import UserError
from fl.validate import at_least, choice, fraction, positive


def complaint(check: Callable[..., None], *arguments: Any) -> str | None:
    """What a check says, or None where it lets the value pass."""
    try:
        check(*arguments)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("value", [0, -1])
def test_too_small_a_number_is_refused(value: int) -> None:
    assert complaint(at_least, "epochs", value, 1) == f"epochs must be at least 1, got {value}"


@pytest.mark.parametrize("value", [1, 2, 10**9])
def test_a_number_large_enough_passes(value: int) -> None:
    assert complaint(at_least, "epochs", value, 1) is None


@pytest.mark.parametrize("value", [0, -0.5, math.inf, -math.inf, math.nan])
def test_what_is_not_a_finite_number_above_zero_is_not_positive(value: float) -> None:
    assert complaint(positive, "lr", value) == f"lr must be a positive number, got {value}"


@pytest.mark.parametrize("value", [1, 1e-300, 1e300])
def test_finite_numbers_above_zero_are_positive(value: float) -> None:
    assert complaint(positive, "lr", value) is None


@pytest.mark.parametrize("value", [0, -0.1, 1.0001, math.inf, math.nan])
def test_what_is_not_above_zero_and_at_most_one_is_no_fraction(value: float) -> None:
    assert complaint(fraction, "keep", value) == f"keep must be in (0, 1], got {value}"


@pytest.mark.parametrize("value", [1, 1e-9, 0.5])
def test_numbers_up_to_one_are_fractions(value: float) -> None:
    assert complaint(fraction, "keep", value) is None


def test_an_unknown_choice_is_told_the_valid_ones() -> None:
    expected = "unknown model 'cnm'; valid: cnn, vgg9"
    assert complaint(choice, "model", "cnm", iter(["vgg9", "cnn"])) == expected
    assert complaint(choice, "model", "cnn", iter(["vgg9", "cnn"])) is None
