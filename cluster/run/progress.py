"""Shows a run's plan, and its progress: a live table on a terminal, plain lines elsewhere."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median

import yaml
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from cluster.run.options import Launch
from cluster.run.prepare import Prepared
from cluster.run.run_dir import locate, nested
from cluster.run.steps import print_text
from fl.events import (
    AttemptFailed,
    ClientDropped,
    ClientEnd,
    ClientProgress,
    ClientStart,
    Epoch,
    Event,
    Listener,
    Phase,
    Preparing,
    RankFailure,
    RoundEnd,
    RoundsResumed,
    RunStart,
)
from fl.federation import Client
from fl.report.words import size

LISTED = 32
"""Most clients for which each has a line of its own."""

# The placement plan as a table: what each client trains, on which share of the machine.


def print_dry_run(launch: Launch, prepared: Prepared, console: Console) -> None:
    """Prints the whole configuration, the placement plan, and where the run would be."""
    console.print(yaml.safe_dump(nested(launch.run), sort_keys=False), highlight=False)
    print_plan(prepared, console)
    console.print(f"would run in {locate(launch)}", soft_wrap=True)


def print_plan(prepared: Prepared, console: Console) -> None:
    """Prints what there is, what each client asks for, and how many run at once."""
    inventory = prepared.inventory
    gpus = Counter(gpu.name for gpu in inventory.gpus)
    named = ", ".join(f"{count} x {name}" for name, count in gpus.items())
    limited = inventory.memory_bytes < sys.maxsize
    memory = f"{size(inventory.memory_bytes)} of memory" if limited else "the partition's memory"
    console.print(
        f"\nplacement on {inventory.node} ({inventory.source}): {inventory.cpus} cores, "
        f"{memory}, {named or 'no GPUs'}\n"
        f"partition {prepared.partition.digest}"
    )
    headings = ("client", "role", "model", "samples", "cores", "GPU", "memory", "at once")
    # Narrow enough for 80 columns: names must not be cut.
    table = Table(*headings, "expected", box=None, padding=(0, 1, 0, 0))
    each = len(prepared.members) <= LISTED
    kinds = {(c.role, c.model, _width(c)): c for c in prepared.members}
    widths = Counter(model for model, _ in {kind[1:] for kind in kinds})
    shown = prepared.members if each else kinds.values()
    for client in shown:
        request = inventory.scaled(client.request)
        table.add_row(
            str(client.id) if each else "…",
            client.role,
            client.model if widths[client.model] == 1 else f"{client.model} {_width(client):g}",
            str(client.num_samples),
            f"{request.cpus:g}",
            f"{request.gpus:g}" if inventory.gpus else "none",
            size(request.memory_bytes) if request.memory_bytes else "no limit",
            str(inventory.at_once(client.request)),
            _expected(client, prepared.requests.rates),
        )
    console.print(table)


def _width(client: Client) -> float:
    return getattr(client.training, "width", 1.0)


def _expected(client: Client, rates: Mapping[str, float]) -> str:
    if client.model not in rates:
        return "unknown"
    return f"{client.training.work(client.num_samples) * rates[client.model]:.1f} s"


# A run's progress as plain lines, where output is no terminal.


class PlainLines:
    """One line per event worth one; with many clients, a line for every twentieth of them."""

    def __init__(self, members: tuple[Client, ...], console: Console) -> None:
        self._members = members
        self._console = console
        self._finished = 0
        self._stride = 1 if len(members) <= LISTED else max(1, len(members) // 20)
        self._rounds, self._metric = 1, "accuracy"

    def __call__(self, event: Event) -> None:
        """Prints what happened, if it is worth a line."""
        if line := self._line(event):
            print_text(f"[{event.seconds:7.1f} s] {line}", self._console)

    def _line(self, event: Event) -> str | None:
        match event:
            case RunStart():
                self._rounds, self._metric = event.rounds, event.metric
            case Preparing():
                return f"{event.what} …"
            case Phase() | ClientEnd() | Epoch() if self._rounds > 1:
                return None  # over rounds, each round has one line instead
            case RoundEnd() if self._rounds > 1:
                return _round(event, self._metric)
            case RoundsResumed():
                return f"goes on after round {event.round} of {event.rounds}"
            case Phase():
                return self._phase(event)
            case ClientEnd():
                self._finished += 1
                if self._finished % self._stride and self._finished < len(self._members):
                    return None
                how = "reused" if event.reused else "trained in"
                return (
                    f"client {event.client} {event.model} ({event.num_samples} samples) {how} "
                    f"{_outcome(event)} up ({self._finished} of {len(self._members)} clients)"
                )
            case AttemptFailed():
                return f"client {event.client} failed, attempt {event.attempt}: {event.reason}"
            case ClientDropped():
                return f"client {event.client} is left out: {event.reason}"
            case Epoch():
                figures = f"loss {event.loss:.4f}, {self._metric} {event.accuracy:.4f}"
                return f"{event.stage} epoch {event.epoch}/{event.epochs}: {figures}"
            case RankFailure():
                return f"rank {event.rank} of the server {event.reason}"
        return None

    def _phase(self, event: Phase) -> str:
        if event.took is not None:
            return f"{event.phase} took {event.took:.1f} s"
        if event.phase == "local":
            self._finished = 0  # a round may map more than once
        return f"{event.phase} …"


def _round(event: RoundEnd, metric: str) -> str:
    took = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in event.took.items())
    return f"round {event.round}/{event.rounds}: {metric} {event.accuracy:.4f} ({took})"


def _outcome(event: ClientEnd) -> str:
    sent = f"{event.bytes_up / 2**20:.1f} MiB"
    return f"from the store, {sent}" if event.reused else f"{event.seconds_training:.1f} s, {sent}"


# A run's progress on a terminal: a bar per phase, and a row per client; 80 columns suffice.

NAME_WIDTH = 20
"""Columns of a model's name; a longer one is cut, and nothing else ever is."""
ROLE_WIDTH = 12
DAY = 24 * 3600.0
"""Seconds over which a phase's pace is taken; rich's default loses clients that take minutes."""
WAITING, TRAINING, DONE, FAILED = "waiting", "training", "done", "failed"
COLOURS = {WAITING: "dim", TRAINING: "yellow", DONE: "green", FAILED: "red"}


class LiveTable:
    """A bar per phase; below it a row per client, or how many are where if there are many.

    The bars come first: a terminal may have fewer rows than there are clients.
    """

    def __init__(self, members: tuple[Client, ...]) -> None:
        self._members = members
        self._state = {c.id: (WAITING, WAITING) for c in members}
        self._losses: dict[int, float] = {}
        self._preparing, self._metric = "", "accuracy"
        self._bars = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=8),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
            speed_estimate_period=DAY,
        )
        self._local = self._bars.add_task("local", total=len(members), note="", start=False)
        self._phases = {"local": self._local}

    def __call__(self, event: Event) -> None:
        """Updates the table's state; the screen is refreshed on its own."""
        match event:
            case RunStart():
                self._metric = event.metric
            case Preparing():
                self._preparing = f"{event.what} …"
            case ClientStart():
                self._preparing = ""
                self._state[event.client] = TRAINING, TRAINING
            case ClientProgress():
                self._losses[event.client] = event.loss
                self._state[event.client] = TRAINING, _how_far(event)
            case AttemptFailed():
                self._state[event.client] = FAILED, f"attempt {event.attempt} failed"
            case ClientDropped():
                self._end(event.client, FAILED, "left out")
            case ClientEnd():
                self._end(event.client, DONE, _outcome(event))
            case RoundEnd():
                bar = self._bar("rounds", total=event.rounds)
                note = f"{self._metric} [bold]{event.accuracy:.4f}"
                self._bars.update(bar, completed=event.round, note=note)
            case Phase():
                self._phase(event)
            case Epoch():
                note = f"loss {event.loss:.3f}  {self._metric} [bold]{event.accuracy:.4f}"
                bar = self._bar(event.stage, total=event.epochs)
                self._bars.update(bar, total=event.epochs, completed=event.epoch, note=note)

    def render(self) -> RenderableType:
        """The bars and the table as they are now."""
        parts: list[RenderableType] = [self._bars]
        if self._preparing:
            parts.append(Text(self._preparing, style="dim"))
        parts.append(self._rows() if len(self._members) <= LISTED else self._counts())
        return Group(*parts)

    def _rows(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("client", justify="right", no_wrap=True)
        table.add_column("role", no_wrap=True, max_width=ROLE_WIDTH)
        table.add_column("model", no_wrap=True, max_width=NAME_WIDTH)
        table.add_column("samples", justify="right", no_wrap=True)
        table.add_column("state", no_wrap=True)
        for c in self._members:
            kind, text = self._state[c.id]
            state = Text(text, style=COLOURS[kind])
            table.add_row(str(c.id), Text(c.role), Text(c.model), str(c.num_samples), state)
        return table

    def _counts(self) -> Text:
        """How many clients are in which state, and the losses of those that train."""
        counts = Counter(kind for kind, _ in self._state.values())
        line = Text(", ").join(
            Text(f"{counts[kind]} {kind}", style=COLOURS[kind]) for kind in COLOURS if counts[kind]
        )
        training = [loss for k, loss in self._losses.items() if self._state[k][0] == TRAINING]
        if training:
            line.append(f"; loss about {median(training):.3f}")
        return line

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

    def _end(self, client: int, kind: str, text: str) -> None:
        self._state[client] = kind, text
        self._losses.pop(client, None)
        self._bars.advance(self._local)

    def _bar(self, name: str, total: int) -> TaskID:
        if name not in self._phases:
            self._phases[name] = self._bars.add_task(name, total=total, note="")
        return self._phases[name]


def _how_far(event: ClientProgress) -> str:
    of = f"/{event.of}" if event.of else ""
    loss = f"{event.loss:.3f}" if abs(event.loss) < 1000 else f"{event.loss:.2g}"
    return f"{event.unit} {event.done}{of}, loss {loss}"


@contextmanager
def progress(members: tuple[Client, ...], console: Console) -> Iterator[Listener]:
    """A listener that shows the run on the terminal until the context ends."""
    if not console.is_terminal:
        yield PlainLines(members, console)
        return
    live = LiveTable(members)
    with Live(get_renderable=live.render, console=console, refresh_per_second=4):
        yield live
