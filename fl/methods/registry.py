"""Every method by its name on the command line."""

from fl.errors import unknown
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
)
from fl.methods.method import Method

METHODS = {
    method.name: method
    for method in (
        fedavg.METHOD,
        fedprox.METHOD,
        feddf.METHOD,
        dense.METHOD,
        co_boosting.METHOD,
        fedaf.METHOD,
        feddm.METHOD,
        fedcvae_ens.METHOD,
        fedcvae_kd.METHOD,
        *fedmho.METHODS,
    )
}


def get_method(name: str) -> Method:
    """The method of that name; the error lists the names there are."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
