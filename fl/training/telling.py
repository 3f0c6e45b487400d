"""How far clients are, told while they train: for people to see, and no result depends on it.

Whoever has clients trained may listen (:func:`told_to`); a training tells at the end of an epoch or
of a step (:func:`tell`). A listener hears at most twice a second, and then of every client that has
told since; only then is a loss read from its device. Without a listener nothing happens.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

from fl.events import ClientProgress

PERIOD_S = 0.5
"""Seconds between two calls of a listener, at least."""
Unit = Literal["epoch", "step"]
Listener = Callable[[Sequence[ClientProgress]], None]


@dataclass
class _Told:
    """What clients have told since the listener was last called."""

    listener: Listener
    latest: dict[int, tuple[Unit, int, int | None, Callable[[], float]]] = field(
        default_factory=dict
    )
    passed_on: float = field(default_factory=lambda: time.monotonic())

    def pass_on(self) -> None:
        rows = [
            ClientProgress(client=k, unit=unit, done=done, of=of, loss=loss)
            for k, (unit, done, of, read) in self.latest.items()
            if isfinite(loss := read())
        ]
        self.latest.clear()
        self.passed_on = time.monotonic()
        self.listener(rows)


_TOLD: ContextVar[_Told | None] = ContextVar("told", default=None)


@contextmanager
def told_to(listener: Listener) -> Iterator[None]:
    """Lets the listener hear of the clients that train inside the context, in this thread."""
    token = _TOLD.set(_Told(listener))
    try:
        yield
    finally:
        _TOLD.reset(token)


def tell(
    client: int, done: int, of: int | None, loss: Callable[[], float], unit: Unit = "epoch"
) -> None:
    """Tells how far a client is.

    Args:
        client: its id.
        done: epochs or steps that are over, 1 or more.
        of: how many there are at most, where that is known.
        loss: reads the last one's loss, or its mean; it is called now, soon or never, so it must
            not see what changes later.
        unit: what is counted.
    """
    told = _TOLD.get()
    if told is None:
        return
    told.latest[client] = unit, done, of, loss
    if time.monotonic() - told.passed_on >= PERIOD_S:
        told.pass_on()


def is_heard() -> bool:
    """Whether anybody listens: who has to prepare something to tell need not do so otherwise."""
    return _TOLD.get() is not None
