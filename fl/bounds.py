"""Bounds of settings: declared at a record's fields, checked here, with the names that users type.

::

    @dataclass(frozen=True, kw_only=True)
    class FitConfig(Settings):
        epochs: Count = 15
        momentum: Annotated[float, Within(0, 1, "[)")] = 0.9

A record checks itself when it is built, and its errors name a field by its own name: ``epochs``.
Only the command line knows where a record is in the tree of records: it builds the tree with checks
:func:`deferred`, then :func:`check_tree` checks all fields by their whole names: ``fusion.epochs``.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cache, partial
from math import inf
from numbers import Real
from operator import ge, gt, le, lt
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from fl.errors import UserError, unknown

_deferred: ContextVar[bool] = ContextVar("deferred", default=False)


class Bound:
    """The values that a setting may have."""

    def allows(self, value: object) -> bool:
        """Whether the setting may have the value."""
        raise NotImplementedError

    def refusal(self, name: str, value: object) -> UserError:
        """The error for a value that the setting of that name may not have."""
        return UserError(f"{name} must be {self}, got {value}")


@dataclass(frozen=True)
class Within(Bound):
    """A finite number from ``low`` to ``high``; a round bracket in ``ends`` leaves that end out."""

    low: float = -inf
    high: float = inf
    ends: Literal["[]", "[)", "(]", "()"] = "[]"

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:g}"
        if self.low == -inf and self.high < inf:
            return f"at most {self.high}"
        if self.high < inf:
            return f"in {self.ends[0]}{self.low}, {self.high}{self.ends[1]}"
        if self.ends[0] == "[":
            return f"at least {self.low}"
        return f"above {self.low}" if self.low else "a positive number"

    def allows(self, value: object) -> bool:
        """Whether it is a finite number between the ends, which ``ends`` includes or not."""
        above_low = gt if self.ends[0] == "(" else ge
        below_high = lt if self.ends[1] == ")" else le
        return _is_finite(value) and above_low(value, self.low) and below_high(value, self.high)


AtLeast = partial(Within, high=inf)
Above = partial(Within, high=inf, ends="()")
AtMost = partial(Within, -inf)
"""The most is more than any machine could ever do."""


@dataclass(frozen=True, eq=False)  # compared by identity: names may be a dict, which has no hash
class OneOf(Bound):
    """One of these words."""

    names: Collection[str]

    def allows(self, value: object) -> bool:
        """Whether it is one of the words."""
        return value in self.names

    def refusal(self, name: str, value: object) -> UserError:
        """The error that names all words, and the nearest one."""
        return unknown(name, value, self.names)


MOST = 10_000_000
"""Of whatever is counted: epochs, samples, steps."""
MOST_CLIENTS = 200_000
LARGEST = 1e9
"""Of a number that is no count, such as a rate, a weight or seconds."""

Count = Annotated[int, AtLeast(1), AtMost(MOST)]
Number = Annotated[int, AtMost(MOST)]
"""A count whose least value depends on other settings, which is checked with those."""
Clients = Annotated[int, AtLeast(1), AtMost(MOST_CLIENTS)]
Positive = Annotated[float, Above(0), AtMost(LARGEST)]
NotNegative = Annotated[float, AtLeast(0), AtMost(LARGEST)]
Width = Annotated[float, Above(0), AtMost(1000)]
"""Factor of a model's channels and hidden units."""
Pixels = Annotated[int, AtLeast(1), AtMost(4096)]
"""Height and width of an image."""
Seed = Annotated[int, Within(-(2**63), 2**63 - 1)]


class Settings:
    """Base of dataclasses whose fields have bounds; a ``Literal`` is a bound too.

    None is allowed where the type includes it. Each element of a tuple is checked.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        if not _deferred.get():
            _check(self, prefix="")

    def check_further(self) -> None:
        """Checks what bounds cannot express; called when all values are within their bounds.

        Raises:
            UserError: its message begins with a setting's name, so that the path to the record
                can be put in front.
        """


@contextmanager
def deferred() -> Iterator[None]:
    """Inside, records are built unchecked; :func:`check_tree` has to follow."""
    token = _deferred.set(True)
    try:
        yield
    finally:
        _deferred.reset(token)


def check_tree(record: Settings, flat: Collection[str] = (), prefix: str = "") -> None:
    """Checks a record and all records nested in it, as if they were built anew.

    Args:
        record: the root.
        flat: nested records whose settings have no name of the record in front.
        prefix: what to put in front of the root's settings.

    Raises:
        UserError: a value is out of bounds, or does not go with another.
    """
    for field in fields(record):
        nested = getattr(record, field.name)
        if isinstance(nested, Settings):
            check_tree(nested, flat, prefix if field.name in flat else f"{prefix}{field.name}.")
    _check(record, prefix)


def _check(record: Settings, prefix: str) -> None:
    """Checks one record without those nested in it."""
    kind: Any = type(record)  # for mypy, which takes no class as hashable
    for name, (bounds, optional) in _bounds(kind).items():
        value = getattr(record, name)
        if value is None and optional:
            continue
        for element in value if isinstance(value, tuple | list) else (value,):
            for bound in bounds:
                if not bound.allows(element):
                    raise bound.refusal(prefix + name, element)
    try:
        record.check_further()
    except UserError as error:
        raise UserError(f"{prefix}{error}") from None


@cache
def _bounds(record: type[Any]) -> dict[str, tuple[list[Bound], bool]]:
    """The bounds of each field, and whether it may be None."""
    hints = get_type_hints(record, include_extras=True)
    kinds = {field.name: hints[field.name] for field in fields(record)}
    return {n: (bounds_in(kind), NoneType in get_args(kind)) for n, kind in kinds.items()}


def bounds_in(kind: Any) -> list[Bound]:
    """The bounds in a field's type, with its annotations; none in a union of several types, which a
    record checks itself."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return [OneOf(inner)]
    if origin is Annotated:
        return [*bounds_in(inner[0]), *(mark for mark in inner[1:] if isinstance(mark, Bound))]
    if origin in (Union, UnionType):
        inner = tuple(part for part in inner if part is not NoneType)
        return bounds_in(inner[0]) if len(inner) == 1 else []
    if origin is tuple:
        return [bound for part in inner if part is not ... for bound in bounds_in(part)]
    return []


def _is_finite(value: Any) -> TypeGuard[float]:
    is_number = isinstance(value, Real)  # NumPy's too
    # Not math.isfinite, which fails on whole numbers that are too large for a float.
    return is_number and -inf < value < inf
