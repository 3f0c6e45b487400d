"""Every method by its name on the command line."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fl.errors import unknown
from fl.federation import Outcome, Problem
from fl.methods import fedmho
from fl.methods.cast import Part
from fl.spaces import Spaces


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: its settings, the parts it deals to the clients, and its algorithm."""

    config: type[Any]
    cast: Callable[[Any, int, Problem], list[Part]]
    run: Callable[..., Outcome]
    one_shot: bool = True
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
    "fedmho": _fedmho("none"),
    "fedmho-md": _fedmho("models"),
    "fedmho-sd": _fedmho("start"),
}


def get_method(name: str) -> Method:
    """The method of that name; the error lists the names there are."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
