"""Shows a run's progress: a live table on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from fl.events import (
    AttemptFailed,
    ClientDropped,
    ClientEnd,
    ClientStart,
    Epoch,
    Event,
    Listener,
    Phase,
    RankFailure,
    RoundEnd,
    RoundsResumed,
    RunStart,
)
from fl.federation import Client

LISTED = 32
"""Most clients for which each has a row of its own."""


@contextmanager
def progress(members: tuple[Client, ...], console: Console) -> Iterator[Listener]:
    """A listener that shows the run on the terminal until the context ends."""
    if not console.is_terminal:
        yield PlainLines(members, console)
        return
    live = LiveTable(members)
    with Live(get_renderable=live.render, console=console, refresh_per_second=8):
        yield live


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
                return f"{_describe(event)} ({self._finished} of {len(self._members)} clients)"
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


class LiveTable:
    """A row per client and a bar per phase."""

    def __init__(self, members: tuple[Client, ...]) -> None:
        self._members = members
        self._state = {c.id: "[dim]waiting" for c in members}
        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._local = self._bars.add_task("local", total=len(members), note="", start=False)
        self._phases = {"local": self._local}

    def __call__(self, event: Event) -> None:
        """Updates the table's state; the screen is refreshed on its own."""
        match event:
            case ClientStart():
                self._state[event.client] = "[yellow]training"
            case AttemptFailed():
                self._state[event.client] = f"[red]attempt {event.attempt} failed"
            case ClientDropped():
                self._state[event.client] = "[red]left out"
                self._bars.advance(self._local)
            case ClientEnd():
                self._state[event.client] = f"[green]{_outcome(event)}"
                self._bars.advance(self._local)
            case RoundEnd():
                bar = self._bar("rounds", total=event.rounds)
                note = f"accuracy [bold]{event.accuracy:.4f}"
                self._bars.update(bar, completed=event.round, note=note)
            case Phase():
                self._phase(event)
            case Epoch():
                note = f"loss {event.loss:.3f}  accuracy [bold]{event.accuracy:.4f}"
                bar = self._bar(event.stage, total=event.epochs)
                self._bars.update(bar, total=event.epochs, completed=event.epoch, note=note)

    def _phase(self, event: Phase) -> None:
        if event.status == "start":
            if event.phase == "local":  # a round may map more than once
                self._bars.reset(self._local, start=False)
            self._bars.start_task(self._bar(event.phase, total=1))
            return
        bar = self._bar(event.phase, total=1)
        if event.phase != "local":
            self._bars.update(bar, completed=self._bars.tasks[bar].total)
        self._bars.stop_task(bar)

    def render(self) -> RenderableType:
        """The table and the bars as they are now."""
        if len(self._members) > LISTED:
            return self._bars
        table = Table("client", "role", "model", "samples", "state", box=None, padding=(0, 2))
        for c in self._members:
            table.add_row(str(c.id), c.role, c.model, str(c.num_samples), self._state[c.id])
        return Group(table, self._bars)

    def _bar(self, name: str, total: int) -> TaskID:
        if name not in self._phases:
            self._phases[name] = self._bars.add_task(name, total=total, note="")
        return self._phases[name]


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
