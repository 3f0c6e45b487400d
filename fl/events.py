"""A run's typed events, from which terminal, files and TensorBoard learn what happens.

Clients that train report their progress where they are: in this process, or in an actor.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from fl.json_files import JsonObject, SettingValues

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run. ``name`` is its name in ``metrics.jsonl``."""

    name: ClassVar[str]
    seconds: float = 0.0
    """Seconds since the run began; set when the event is emitted."""

    def to_json(self) -> JsonObject:
        """As it stands in ``metrics.jsonl``."""
        return {"event": self.name, **vars(self)}

    @classmethod
    def of_json(cls, values: SettingValues) -> Self:
        """The event from the result of :meth:`to_json`, perhaps of another version of Onefold.

        Raises:
            TypeError: a value is missing.
        """
        names = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})


class StopRounds(Exception):
    """Raised by a listener at a :class:`RoundEnd`: that round is the last, and the run ends well.

    A run that was killed and goes on hears only of the rounds to come.
    """


@dataclass(frozen=True, kw_only=True)
class RunStart(Event):
    """A run began, or was resumed."""

    name = "run_start"
    run: str = ""
    rounds: int = 1
    metric: str = "accuracy"
    """What ``accuracy`` is in this run's events: accuracy, or R2 of values."""


@dataclass(frozen=True, kw_only=True)
class Preparing(Event):
    """Something that takes a while has begun before clients can train."""

    name = "preparing"
    what: str


@dataclass(frozen=True, kw_only=True)
class RunEnd(Event):
    """A run is over."""

    name = "run_end"
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Phase(Event):
    """A phase of the run began or ended."""

    name = "phase"
    phase: str
    status: Literal["start", "end"]
    took: float | None = None
    """Seconds, at its end; without those of the phases within it."""


@dataclass(frozen=True, kw_only=True)
class ClientStart(Event):
    """An attempt to train a client began."""

    name = "client_start"
    client: int
    attempt: int = 1
    requested: JsonObject
    """The fields of its :class:`fl.federation.Request`."""


@dataclass(frozen=True, kw_only=True)
class AttemptFailed(Event):
    """An attempt to train a client failed."""

    name = "client_failed"
    client: int
    attempt: int
    reason: str = "unknown"


@dataclass(frozen=True, kw_only=True)
class ClientDropped(Event):
    """A client failed for good, and the run goes on without it."""

    name = "client_dropped"
    client: int
    reason: str = "unknown"


@dataclass(frozen=True, kw_only=True)
class ClientEnd(Event):
    """A client's upload has arrived, trained now or taken from the store."""

    name = "client_end"
    client: int
    role: str = "client"
    model: str | None = None
    num_samples: int | None = None
    round: int = 1
    seconds_training: float = 0.0
    node: str | None = None
    device_uuid: str | None = None
    assigned: dict[str, float] | None = None
    peak_bytes: int | None = None
    bytes_up: int = 0
    bytes_peer: int = 0
    """Bytes for other clients."""
    reused: bool = False
    """Whether the update came from the store."""
    stats: dict[str, float] = field(default_factory=dict)
    """Figures that the task reports of the training, such as ``train_loss``."""
    losses: list[float] = field(default_factory=list)
    """The mean training loss of each epoch; of a training in steps, of equal parts of them."""

    def to_json(self) -> JsonObject:
        """As it stands in ``metrics.jsonl``: the task's figures beside the others."""
        values = super().to_json()
        return values | values.pop("stats")

    @classmethod
    def of_json(cls, values: SettingValues) -> Self:
        """See :meth:`Event.of_json`; values that are no field are the task's figures."""
        names = {"event", *(f.name for f in fields(cls))}
        stats = {name: value for name, value in values.items() if name not in names}
        return super().of_json({**values, "stats": stats})


@dataclass(frozen=True, kw_only=True)
class ClientProgress(Event):
    """How far a client is, reported while it trains: at most twice a second, kept in no file."""

    name = "client_progress"
    client: int
    unit: Literal["epoch", "step"] = "epoch"
    done: int
    """Epochs or steps that are over, of its training's current stage."""
    of: int | None = None
    """How many there are at most, where that is known."""
    loss: float


@dataclass(frozen=True, kw_only=True)
class Epoch(Event):
    """An epoch of a fit at the server is over, and its model was tested."""

    name = "epoch"
    stage: str
    round: int = 1
    epoch: int
    epochs: int
    loss: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class RoundEnd(Event):
    """A round is over, and what it led to was tested."""

    name = "round"
    rounds: int
    took: dict[str, float]
    """Seconds by kind: local, server, overhead."""
    round: int
    accuracy: float
    bytes_up: int
    bytes_down: int
    bytes_peer: int = 0
    client_accuracy: list[float | None] = field(default_factory=list)
    """By client id, where clients were scored on test samples of their own."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The user's own figures of the global model."""
    best: bool = False
    """Whether no round before was as accurate."""
    model: "nn.Module | None" = field(default=None, repr=False, compare=False)
    """The global model itself, where there is one: not to be changed, and kept in no file. The
    callbacks of :func:`onefold.run` are given a copy."""

    def to_json(self) -> JsonObject:
        """As it stands in ``metrics.jsonl``: without the model."""
        values = super().to_json()
        del values["model"]
        return values


@dataclass(frozen=True, kw_only=True)
class RoundsResumed(Event):
    """A run of many rounds goes on after the last one that was finished."""

    name = "rounds_resumed"
    round: int
    rounds: int


@dataclass(frozen=True, kw_only=True)
class RankFailure(Event):
    """A rank of the server failed."""

    name = "rank_failed"
    rank: int
    attempt: int
    reason: str


KINDS: dict[str, type[Event]] = {kind.name: kind for kind in Event.__subclasses__()}
Listener = Callable[[Event], None]


class Events:
    """Stamps events with the seconds since the run began and hands them to every listener."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners
        self._start = time.perf_counter()
        self.phase_seconds: dict[str, float] = {}
        self.earlier_seconds = 0.0
        """Of the run's earlier starts, as far as it goes on from them."""
        self._inner_seconds = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._start

    def emit(self, event: Event) -> None:
        """Calls every listener with the event."""
        stamped = replace(event, seconds=round(self.elapsed, 3))
        for listener in self._listeners:
            listener(stamped)

    def seconds(self) -> dict[str, float]:
        """Seconds by phase and in total, over all starts of the run."""
        return {**self.phase_seconds, "total": self.earlier_seconds + self.elapsed}

    def go_on(self, earlier: Mapping[str, float]) -> None:
        """Adds the seconds that the run had taken when it was last saved."""
        phases = dict(earlier)
        self.earlier_seconds += phases.pop("total", 0.0)
        for name, took in phases.items():
            self.phase_seconds[name] = self.phase_seconds.get(name, 0.0) + took

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times one phase of the run; a phase entered again adds to its time.

        The time of a phase within another one is not counted in the other's.
        """
        self.emit(Phase(phase=name, status="start"))
        outer, self._inner_seconds = self._inner_seconds, 0.0
        begin = time.perf_counter()
        try:
            yield
        finally:
            whole = time.perf_counter() - begin
            took, self._inner_seconds = whole - self._inner_seconds, outer + whole
        self.phase_seconds[name] = self.phase_seconds.get(name, 0.0) + took
        self.emit(Phase(phase=name, status="end", took=round(took, 3)))


def parse_events(lines: Iterable[str]) -> Iterator[Event]:
    """The events of a metrics file's lines; lines that are no event are skipped.

    A run that was killed leaves half a line, in the middle of the file once it has been resumed.
    """
    for line in lines:
        try:
            values = json.loads(line)
            values.pop("crc", None)  # lines of older versions have a checksum
            event = KINDS[values["event"]].of_json(values)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        yield event


def as_line(event: Event) -> str:
    """The event as a line of a metrics file."""
    return json.dumps(event.to_json()) + "\n"


# Progress of training clients, at most twice a second. Display only: no result depends on it, and
# without a listener nothing happens.

PERIOD_S = 0.5
"""Least seconds between two calls of a listener."""
ProgressListener = Callable[[Sequence[ClientProgress]], None]
Latest = tuple[Literal["epoch", "step"], int, int | None, Callable[[], float]]


class _Reports:
    """The latest report of each client since the listener was last called."""

    def __init__(self, listener: ProgressListener) -> None:
        self.listener = listener
        self.latest: dict[int, Latest] = {}
        self.sent_at = time.monotonic()

    def send(self) -> None:
        import torch  # not above: who reads events needs none

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
def reported_to(listener: ProgressListener) -> Iterator[None]:
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
