"""The record of a method: its settings, what it assigns to the clients, and its algorithm."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl.data.datasets import AuxiliaryConfig
from fl.federation import RunSpec, Training
from fl.server import Outcome
from fl.spaces import Spaces


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
