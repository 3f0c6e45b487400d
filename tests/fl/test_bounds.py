"""Bounds of settings: what they allow, and how they name what they refuse."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl.bounds import (
    Above,
    AtLeast,
    Bound,
    Count,
    NotNegative,
    OneOf,
    Positive,
    Settings,
    Within,
    check_tree,
    deferred,
)
from fl.errors import UserError

NUMBERS = st.integers(-(10**400), 10**400) | st.floats(allow_nan=False, allow_infinity=False)
NUMERIC = (AtLeast(1), AtLeast(0), Above(0), Above(-math.inf), Within(0, 1), Within(0, 1, "()"))


@dataclass(frozen=True, kw_only=True)
class Inner(Settings):
    epochs: Count = 3
    rate: Positive = 0.1
    momentum: Annotated[float, Within(0, 1, "[)")] = 0.9
    patience: Count | None = None
    models: tuple[Annotated[str, OneOf({"cnn": 1, "vgg9": 2})], ...] = ()
    ends: tuple[NotNegative, NotNegative] | None = None
    optimizer: Literal["adam", "sgd"] = "adam"
    weighting: Literal["samples", "uniform"] | None = None
    pair: tuple[float, float] | Literal["learned"] | None = None

    def check_further(self) -> None:
        if self.patience is not None and self.patience > self.epochs:
            raise UserError(f"patience must be at most the epochs, got {self.patience}")


@dataclass(frozen=True, kw_only=True)
class Further(Inner):
    steps: Count = 1


@dataclass(frozen=True, kw_only=True)
class Outer(Settings):
    seed: int = 0
    clients: Count = 2
    fit: Inner = Inner()
    more: Further = Further()
    run: Inner = Inner()


@dataclass(frozen=True, kw_only=True)
class Root(Settings):
    options: Outer = Outer()


def complaint(record: type[Settings], **settings: Any) -> str | None:
    """What a record says to such settings, or None where it takes them."""
    try:
        record(**settings)
    except UserError as error:
        return str(error)
    return None


def complaint_of_tree(record: Settings, **how: Any) -> str | None:
    try:
        check_tree(record, **how)
    except UserError as error:
        return str(error)
    return None


@given(value=NUMBERS, limit=st.integers(-3, 3))
def test_at_least_has_its_end_and_above_does_not(value: float, limit: int) -> None:
    assert AtLeast(limit).allows(value) == (value >= limit)
    assert Above(limit).allows(value) == (value > limit)
    assert AtLeast(limit).allows(limit)
    assert not Above(limit).allows(limit)


@given(value=NUMBERS)
def test_an_interval_has_the_ends_with_square_brackets(value: float) -> None:
    inside = 0 < value < 1
    assert Within(0, 1).allows(value) == (inside or value in (0, 1))
    assert Within(0, 1, "[)").allows(value) == (inside or value == 0)
    assert Within(0, 1, "(]").allows(value) == (inside or value == 1)
    assert Within(0, 1, "()").allows(value) == inside


@pytest.mark.parametrize("bound", NUMERIC, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None, (1,)])
def test_what_is_no_finite_number_is_within_no_bound(bound: Bound, value: Any) -> None:
    assert not bound.allows(value)


@pytest.mark.parametrize("bound", [AtLeast(1), Above(0), Within(0, 1)], ids=str)
def test_numpys_numbers_are_numbers(bound: Bound) -> None:
    assert bound.allows(np.int64(1))
    assert bound.allows(np.float32(1))
    assert not bound.allows(np.int64(-1))


@pytest.mark.parametrize(
    ("bound", "value", "message"),
    [
        (AtLeast(1), 0, "epochs must be at least 1, got 0"),
        (Above(0), -1.0, "epochs must be a positive number, got -1.0"),
        (Above(2), 2, "epochs must be above 2, got 2"),
        (Within(0, 1, "[)"), 2, "epochs must be in [0, 1), got 2"),
        (Within(0, 1, "(]"), math.nan, "epochs must be in (0, 1], got nan"),
        (
            OneOf(("vgg9", "cnn")),
            "cnm",
            "unknown epochs 'cnm'; valid: cnn, vgg9; did you mean cnn?",
        ),
    ],
    ids=str,
)
def test_a_refusal_says_what_is_allowed(bound: Bound, value: Any, message: str) -> None:
    assert not bound.allows(value)
    assert str(bound.refusal("epochs", value)) == message


def test_names_that_join_later_are_valid() -> None:
    names = {"cnn": 1}
    bound = OneOf(names)
    names["vgg9"] = 2
    assert bound.allows("vgg9")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": None}, "epochs must be at least 1, got None"),
        ({"rate": math.inf}, "rate must be a positive number, got inf"),
        ({"momentum": 1}, "momentum must be in [0, 1), got 1"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"models": ("cnn", "vgg")}, "unknown models 'vgg'; valid: cnn, vgg9; did you mean vgg9?"),
        ({"models": ["vgg"]}, "unknown models 'vgg'; valid: cnn, vgg9; did you mean vgg9?"),
        ({"ends": (0, -1)}, "ends must be at least 0, got -1"),
        ({"optimizer": "lion"}, "unknown optimizer 'lion'; valid: adam, sgd"),
        ({"optimizer": None}, "unknown optimizer None; valid: adam, sgd"),
        ({"weighting": "size"}, "unknown weighting 'size'; valid: samples, uniform"),
        ({"patience": 4}, "patience must be at most the epochs, got 4"),
    ],
)
@pytest.mark.parametrize("record", [Inner, Further])
def test_a_record_built_by_hand_names_its_field(
    record: type[Settings], settings: dict[str, Any], message: str
) -> None:
    assert complaint(record, **settings) == message


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"patience": 3, "models": ("cnn", "vgg9"), "ends": (0, 1.5), "momentum": 0},
        {"optimizer": "sgd", "weighting": "uniform", "pair": (1.0, 1.0)},
        {"pair": "learned"},
    ],
)
def test_what_is_within_all_bounds_is_taken(settings: dict[str, Any]) -> None:
    assert complaint(Inner, **settings) is None


def test_bounds_come_before_what_they_do_not_say() -> None:
    assert complaint(Inner, patience=4, epochs=0) == "epochs must be at least 1, got 0"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": 0}, "clients must be at least 1, got 0"),
        ({"fit": {"epochs": 0}}, "fit.epochs must be at least 1, got 0"),
        ({"fit": {"models": ("x",)}}, "unknown fit.models 'x'; valid: cnn, vgg9"),
        ({"more": {"steps": 0}}, "more.steps must be at least 1, got 0"),
        ({"fit": {"patience": 4}}, "fit.patience must be at most the epochs, got 4"),
        ({"run": {"epochs": 0}}, "epochs must be at least 1, got 0"),
        ({"run": {"patience": 4}}, "patience must be at most the epochs, got 4"),
    ],
)
def test_a_tree_built_unchecked_is_checked_by_whole_names(
    settings: dict[str, Any], message: str
) -> None:
    kinds = {"fit": Inner, "more": Further, "run": Inner}
    with deferred():
        made = {n: kinds[n](**v) if n in kinds else v for n, v in settings.items()}
        record = Root(options=Outer(**made))
    assert complaint_of_tree(record, flat=("run", "options")) == message


def test_a_record_is_flat_only_where_the_tree_says_so() -> None:
    with deferred():
        record = Root(options=Outer(run=Inner(epochs=0)))
    assert complaint_of_tree(record) == "options.run.epochs must be at least 1, got 0"
    assert (
        complaint_of_tree(record, prefix="a.") == "a.options.run.epochs must be at least 1, got 0"
    )


def test_checks_are_on_again_even_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), deferred():
        _ = 1 / 0
    assert complaint(Inner, epochs=0) == "epochs must be at least 1, got 0"
