"""A method's record: settings, assignment, algorithm; and the spaces that a sweep searches."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fl.data.datasets import AuxiliaryConfig
from fl.errors import UserError
from fl.federation import RunSpec, Training
from fl.server import Outcome

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


@dataclass(frozen=True)
class Assignment:
    """A client's role, and how it trains."""

    role: str
    training: Training


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method's entry in the registry, at the end of the method's file."""

    name: str
    """Name for ``--method``."""
    config: type[Any]
    assign: Callable[[Any, int, RunSpec], list[Assignment]]
    """Function of settings, number of clients and run spec: each client's assignment, by id."""
    run: Callable[..., Outcome]
    """Function of clients, server and settings; may also take ``auxiliary`` and ``rounds``."""
    one_shot: bool = True
    """Whether it has one round only; else ``run`` takes :class:`fl.rounds.Rounds` as ``rounds``."""
    many_rounds: str = "rounds"
    """Protocol of a run of several rounds; ``released`` where only the released code has them."""
    default_ranks: int | None = None
    """Ranks of the server where none are asked for; None for one per GPU. It is 1 for a method that
    makes each epoch's data in the launch's process, which then has a GPU of its own."""
    auxiliary: Callable[[Any], AuxiliaryConfig] | None = None
    """Finds the auxiliary data set in the settings, if ``run`` takes one as ``auxiliary``."""
    scores_clients: Callable[[Any], bool] = lambda settings: False
    """Whether, with these settings, accuracy is that of the clients' own models on test samples of
    their own: then a share of each client's samples is held out for it."""
    any_targets: bool = False
    """Whether it takes targets that are no classes: its clients train by their records' own loss,
    and the server looks at weights alone."""
    fixed_samples: bool = False
    """Whether it reckons with one form of each sample, which no transform may change by epoch."""
    supports_dp: Callable[[Any], bool] = lambda settings: False
    """Whether, with these settings, all that a client sends about its samples is what one training
    by its record's own task uploads, so that this can be made differentially private."""
    spaces: Spaces = Spaces()
    """What a sweep searches by default."""
