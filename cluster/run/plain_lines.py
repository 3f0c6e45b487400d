"""A run's progress as plain lines, where output is no terminal."""

from rich.console import Console

from fl.events import (
    AttemptFailed,
    ClientDropped,
    ClientEnd,
    Epoch,
    Event,
    Phase,
    Preparing,
    RankFailure,
    RoundEnd,
    RoundsResumed,
    RunStart,
)
from fl.federation import Client

LISTED = 32
"""Most clients for which each has a line of its own."""


class PlainLines:
    """One line per event worth one; with many clients, a line for every twentieth of them."""

    def __init__(self, members: tuple[Client, ...], console: Console) -> None:
        self._members = members
        self._console = console
        self._finished = 0
        self._stride = 1 if len(members) <= LISTED else max(1, len(members) // 20)
        self._rounds = 1

    def __call__(self, event: Event) -> None:
        """Prints what happened, if it is worth a line."""
        line = self._line(event)
        if line:
            self._console.print(
                f"[{event.seconds:7.1f} s] {line}", markup=False, highlight=False, soft_wrap=True
            )

    def _line(self, event: Event) -> str | None:
        match event:
            case RunStart():
                self._rounds = event.rounds
            case Preparing():
                return f"{event.what} …"
            case Phase() | ClientEnd() | Epoch() if self._rounds > 1:
                return None  # over rounds, each round has one line instead
            case RoundEnd() if self._rounds > 1:
                return _round(event)
            case RoundsResumed():
                return f"goes on after round {event.round} of {event.rounds}"
            case Phase():
                return self._phase(event)
            case ClientEnd():
                self._finished += 1
                if self._finished % self._stride and self._finished < len(self._members):
                    return None
                many = f"{self._finished} of {len(self._members)} clients"
                return f"{_describe(event)} ({many})"
            case AttemptFailed():
                return f"client {event.client} failed, attempt {event.attempt}: {event.reason}"
            case ClientDropped():
                return f"client {event.client} is left out: {event.reason}"
            case Epoch():
                return _epoch(event)
            case RankFailure():
                return f"rank {event.rank} of the server {event.reason}"
        return None

    def _phase(self, event: Phase) -> str:
        if event.took is not None:
            return f"{event.phase} took {event.took:.1f} s"
        if event.phase == "local":
            self._finished = 0  # a round may map more than once
        return f"{event.phase} …"


def _round(event: RoundEnd) -> str:
    took = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in event.took.items())
    return f"round {event.round}/{event.rounds}: accuracy {event.accuracy:.4f} ({took})"


def _epoch(event: Epoch) -> str:
    figures = f"loss {event.loss:.4f}, accuracy {event.accuracy:.4f}"
    return f"{event.stage} epoch {event.epoch}/{event.epochs}: {figures}"


def _describe(event: ClientEnd) -> str:
    client = f"client {event.client} {event.model} ({event.num_samples} samples)"
    return f"{client} {_outcome(event)}"


def _outcome(event: ClientEnd) -> str:
    size = f"{event.bytes_up / 2**20:.1f} MiB up"
    if event.reused:
        return f"reused from the store, {size}"
    return f"trained in {event.seconds_training:.1f} s, {size}"
