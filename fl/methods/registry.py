"""Every method by its name on the command line."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from fl.data.auxiliary import AuxiliaryConfig
from fl.errors import unknown
from fl.federation import Outcome, Problem
from fl.methods import (
    co_boosting,
    dense,
    fedaf,
    fedavg,
    fedcvae_ens,
    fedcvae_kd,
    feddf,
    feddm,
    fedmho,
    fedprox,
    prototypes,
)
from fl.methods.cast import Part
from fl.spaces import Spaces


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: its settings, the parts it deals to the clients, and its algorithm."""

    config: type[Any]
    cast: Callable[[Any, int, Problem], list[Part]]
    run: Callable[..., Outcome]
    one_shot: bool = True
    """Whether it has one round only; else ``run`` takes :class:`fl.rounds.Rounds` as ``rounds``."""
    many_rounds: str = "rounds"
    """Protocol of a run of several rounds; ``released`` where only the released code has them."""
    one_rank: bool = False
    """Whether its server must have one rank, on the driver's device: it trains a model in a loop
    of its own there."""
    auxiliary: Callable[[Any], AuxiliaryConfig] | None = None
    """Names the auxiliary data set in the settings, if ``run`` takes one as ``auxiliary``."""
    spaces: Spaces = Spaces()
    """What a sweep tries unless it is told otherwise."""


def _fedmho(teacher: fedmho.Teacher) -> Method:
    return Method(
        config=fedmho.FedMHOConfig,
        cast=fedmho.cast,
        run=partial(fedmho.run, teacher=teacher),
        spaces=fedmho.spaces(teacher),
    )


METHODS = {
    "fedavg": Method(
        config=fedavg.FedAvgConfig,
        cast=prototypes.cast,
        run=fedavg.run,
        one_shot=False,
        spaces=fedavg.SPACES,
    ),
    "fedprox": Method(
        config=fedprox.FedProxConfig,
        cast=prototypes.cast,
        run=fedavg.run,
        one_shot=False,
        spaces=fedprox.SPACES,
    ),
    "feddf": Method(
        config=feddf.FedDFConfig,
        cast=prototypes.cast,
        run=feddf.run,
        one_shot=False,
        many_rounds="released",
        auxiliary=attrgetter("auxiliary"),
        spaces=feddf.SPACES,
    ),
    "dense": Method(
        config=dense.DenseConfig,
        cast=dense.cast,
        run=dense.run,
        one_rank=True,
        spaces=dense.SPACES,
    ),
    "co-boosting": Method(
        config=co_boosting.CoBoostingConfig,
        cast=dense.cast,
        run=co_boosting.run,
        one_rank=True,
        spaces=co_boosting.SPACES,
    ),
    "fedaf": Method(
        config=fedaf.FedAFConfig,
        cast=fedaf.cast,
        run=fedaf.run,
        one_shot=False,
        spaces=fedaf.SPACES,
    ),
    "feddm": Method(
        config=feddm.FedDMConfig,
        cast=fedaf.cast,
        run=feddm.run,
        one_shot=False,
        spaces=feddm.SPACES,
    ),
    "fedcvae-ens": Method(
        config=fedcvae_ens.FedCVAEConfig,
        cast=fedcvae_ens.cast,
        run=fedcvae_ens.run,
        spaces=fedcvae_ens.SPACES,
    ),
    "fedcvae-kd": Method(
        config=fedcvae_kd.FedCVAEKDConfig,
        cast=fedcvae_ens.cast,
        run=fedcvae_kd.run,
        one_rank=True,
        spaces=fedcvae_kd.SPACES,
    ),
    "fedmho": _fedmho("none"),
    "fedmho-md": _fedmho("models"),
    "fedmho-sd": _fedmho("start"),
}


def get_method(name: str) -> Method:
    """The method of that name; the error lists the names there are."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
