"""Progress reports from training clients, at most twice a second. Display only: no result depends
on them, and without a listener nothing happens."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import isfinite
from typing import Literal

import torch

from fl.events import ClientProgress

PERIOD_S = 0.5
"""Least seconds between two calls of a listener."""
Listener = Callable[[Sequence[ClientProgress]], None]
Latest = tuple[Literal["epoch", "step"], int, int | None, Callable[[], float]]


class _Reports:
    """The latest report of each client since the listener was last called."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.latest: dict[int, Latest] = {}
        self.sent_at = time.monotonic()

    def send(self) -> None:
        if torch.cuda.is_initialized():  # clients' losses may be made on streams of their own
            torch.cuda.synchronize()
        rows = [
            ClientProgress(client=k, unit=unit, done=done, of=of, loss=loss)
            for k, (unit, done, of, read) in self.latest.items()
            if isfinite(loss := read())
        ]
        self.latest.clear()
        self.sent_at = time.monotonic()
        self.listener(rows)


_REPORTS: ContextVar[_Reports | None] = ContextVar("reports", default=None)


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """Calls the listener with the progress of clients that train inside, in this thread."""
    token = _REPORTS.set(_Reports(listener))
    try:
        yield
    finally:
        _REPORTS.reset(token)


def report(
    client: int,
    done: int,
    of: int | None,
    loss: Callable[[], float],
    unit: Literal["epoch", "step"] = "epoch",
) -> None:
    """Reports that ``done`` of at most ``of`` epochs or steps are over (1 or more; None: unknown).

    ``loss`` reads the last one's mean loss from its device. It is called now, later or never, so
    it must not see what changes afterwards.
    """
    reports = _REPORTS.get()
    if reports is None:
        return
    reports.latest[client] = unit, done, of, loss
    if time.monotonic() - reports.sent_at >= PERIOD_S:
        reports.send()
