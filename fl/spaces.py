"""The spaces of sweeps: distributions of settings, declared beside each method's configuration."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fl.errors import UserError

GRID_POINTS = 3
"""Values of a range that a grid tries."""

Value = bool | int | float | str


@dataclass(frozen=True)
class Uniform:
    """A number of a range, all equally likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        low, high = self.low, self.high
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UserError(f"a range needs a lower and a higher end, got {low} and {high}")

    @property
    def grid(self) -> tuple[Value, ...]:
        """Evenly spread values, the ends among them."""
        step = (self.high - self.low) / (GRID_POINTS - 1)
        return (*(self.low + i * step for i in range(GRID_POINTS - 1)), self.high)


@dataclass(frozen=True)
class LogUniform(Uniform):
    """A number of a range, all orders of magnitude equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise UserError(f"a loguniform range must lie above 0, got {self.low:g}")

    @property
    def grid(self) -> tuple[Value, ...]:
        """Values at even ratios, the ends among them."""
        ratio = (self.high / self.low) ** (1 / (GRID_POINTS - 1))
        return (*(self.low * ratio**i for i in range(GRID_POINTS - 1)), self.high)


@dataclass(frozen=True)
class Integers(Uniform):
    """A whole number of a range, both ends among them."""

    low: int
    high: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if int(self.low) != self.low or int(self.high) != self.high:
            raise UserError(f"integers need whole ends, got {self.low} and {self.high}")

    @property
    def grid(self) -> tuple[Value, ...]:
        """Evenly spread values, the ends among them."""
        return tuple(dict.fromkeys(round(float(value)) for value in super().grid))


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise UserError("a choice needs at least one value")
        for value in self.values:
            if not isinstance(value, bool | int | float | str):
                raise UserError(f"a choice takes numbers, words, true and false, got {value!r}")

    @property
    def grid(self) -> tuple[Value, ...]:
        """All values."""
        return self.values


Distribution = Uniform | LogUniform | Integers | Choice
Space = Mapping[str, Distribution]
"""Distributions by the settings' dotted names."""


@dataclass(frozen=True, kw_only=True)
class Spaces:
    """The spaces that a method declares for sweeps."""

    server: Space = field(default_factory=dict)
    """Settings of the server alone: searching them trains no client again."""
    local: Space = field(default_factory=dict)
    """Settings that change what clients upload."""
    epochs: str | None = None
    """The setting of the number of epochs of the server's last fit, if it has one."""

    def named(self) -> dict[str, Space]:
        """The spaces by the names they have on the command line."""
        return {"server": self.server, "local": self.local, "both": {**self.server, **self.local}}
