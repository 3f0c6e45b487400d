"""Checks for configuration records: each raises a one-line UserError naming the setting."""

import math
from collections.abc import Iterable

from fl.errors import UserError, unknown


def choice(setting: str, value: str, valid: Iterable[str]) -> None:
    """``value`` is one of the valid names."""
    names = tuple(valid)
    if value not in names:
        raise unknown(setting, value, names)


def at_least(setting: str, value: int, least: int) -> None:
    """``value`` is no smaller than ``least``."""
    if value < least:
        raise UserError(f"{setting} must be at least {least}, got {value}")


def positive(setting: str, value: float) -> None:
    """``value`` is a finite number above zero."""
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{setting} must be a positive number, got {value}")


def fraction(setting: str, value: float) -> None:
    """``value`` lies in (0, 1]."""
    if not 0 < value <= 1:
        raise UserError(f"{setting} must be in (0, 1], got {value}")


def not_negative(setting: str, value: float) -> None:
    """``value`` is a finite number, 0 or above."""
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{setting} must be 0 or more, got {value}")
