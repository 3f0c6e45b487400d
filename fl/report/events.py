"""Reads metrics.jsonl for the report: clients, rounds, failures, accuracy after each epoch."""

import math
from dataclasses import dataclass
from pathlib import Path

from fl.events import (
    AttemptFailed,
    ClientDropped,
    ClientEnd,
    Epoch,
    Event,
    RoundEnd,
    RoundsResumed,
    RunStart,
    parse_events,
)
from fl.whole_files import no_pipe


@dataclass(frozen=True)
class ClientRow:
    """One client's line in the report; None where it has not reported (yet)."""

    client: int
    role: str
    model: str | None = None
    samples: int | None = None
    seconds: float | None = None
    bytes_up: int | None = None
    reused: bool | None = None


@dataclass(frozen=True)
class LossCurve:
    """A client's mean training loss, epoch by epoch or by parts of its steps."""

    client: int
    role: str
    model: str | None
    steps: list[float]
    """When each epoch or part ended, in the curve's unit."""
    losses: list[float]
    """Not a number where it was not finite."""
    unit: str = "epoch"
    """``round`` in a run of many rounds, else ``epoch`` or ``step``."""


@dataclass(frozen=True)
class RoundRow:
    """One round's results."""

    number: int
    accuracy: float
    seconds: dict[str, float]
    """Seconds by kind: local, server, overhead."""
    bytes_up: int


@dataclass(frozen=True)
class Failure:
    """An attempt of a client that failed, and why."""

    client: int
    attempt: int | None
    """None for a client that was left out of the result."""
    reason: str


def read_events(path: Path) -> list[Event]:
    """Every complete event of a metrics file, in order; none when there is no file."""
    if not path.exists():
        return []
    text = no_pipe(path).read_text(encoding="utf-8", errors="replace")
    return list(parse_events(text.split("\n")))


def fusion_accuracy(events: list[Event]) -> dict[int, float]:
    """Epoch to accuracy, ascending. Of epochs that a resumed run repeated, the later counts."""
    found: dict[int, float] = {}
    for event in events:
        if isinstance(event, Epoch) and event.stage == "fusion":
            found = {earlier: found[earlier] for earlier in found if earlier < event.epoch}
            found[event.epoch] = event.accuracy
    return found


def round_rows(events: list[Event]) -> list[RoundRow]:
    """The rounds of a run of many, ascending; of rounds that were repeated, the later counts."""
    found: dict[int, RoundRow] = {}
    for event in events:
        if isinstance(event, RoundEnd) and event.rounds > 1:
            row = RoundRow(event.round, event.accuracy, event.took, event.bytes_up)
            found[event.round] = row
    return [found[number] for number in sorted(found)]


def client_accuracy(events: list[Event]) -> dict[int, list[float | None]]:
    """By round, ascending, every client's accuracy; of rounds that were repeated the later counts.

    Empty where clients were not scored.
    """
    rounds = [event for event in events if isinstance(event, RoundEnd)]
    found = {event.round: event.client_accuracy for event in rounds if _scored(event)}
    return {number: found[number] for number in sorted(found)}


def client_rows(events: list[Event]) -> dict[int, ClientRow]:
    """What each client reported, summed over the rounds of a method that has many."""
    return {client: _row(client, ends) for client, ends in _client_ends(events).items()}


def client_losses(events: list[Event], *, in_rounds: bool = False) -> list[LossCurve]:
    """The curves of the clients that trained in epochs, by client id."""
    curves = []
    for client, ends in _client_ends(events).items():
        losses = [n if math.isfinite(n) else math.nan for end in ends for n in end.losses]
        if losses:
            last = [end for end in ends if end.losses][-1]
            if in_rounds:
                unit, steps = "round", [step for end in ends for step in _epoch_ends(end)]
            else:
                unit, length = _unit(last)
                steps = [length * (k + 1) for k in range(len(losses))]
            curves.append(LossCurve(client, last.role, last.model, steps, losses, unit))
    return curves


def _unit(end: ClientEnd) -> tuple[str, float]:
    """What a client's training is counted in, and how much of it each of its losses is of."""
    steps = end.stats.get("steps")
    if steps is None or "epochs" in end.stats:
        return "epoch", 1.0
    return "step", steps / max(1, len(end.losses))


def _epoch_ends(end: ClientEnd) -> list[float]:
    """When each epoch of a client's training ended, in rounds."""
    count = len(end.losses)
    return [end.round - 1 + (epoch + 1) / count for epoch in range(count)]


def _client_ends(events: list[Event]) -> dict[int, list[ClientEnd]]:
    """What each client reported, in order, by client id; of what was repeated the later."""
    ends: list[ClientEnd] = []
    before: list[ClientEnd] = []
    for event in events:
        match event:
            case RunStart():  # a resumed run reports all of its clients again,
                before, ends = before + ends, []
            case RoundsResumed(round=done):  # except those of the rounds it had done
                ends = [end for end in before if end.round <= done]
            case ClientEnd():
                ends.append(event)
    by_client: dict[int, list[ClientEnd]] = {}
    for end in ends:
        by_client.setdefault(end.client, []).append(end)
    return {client: by_client[client] for client in sorted(by_client)}


def client_failures(events: list[Event]) -> list[Failure]:
    """The attempts that failed since the run was last started, in the order of failure."""
    failures: list[Failure] = []
    for event in events:
        match event:
            case RunStart():
                failures.clear()
            case AttemptFailed():
                failures.append(Failure(event.client, event.attempt, event.reason))
            case ClientDropped():
                failures.append(Failure(event.client, None, event.reason))
    return failures


def _scored(event: RoundEnd) -> bool:
    return any(accuracy is not None for accuracy in event.client_accuracy)


def _row(client: int, rounds: list[ClientEnd]) -> ClientRow:
    latest = rounds[-1]
    return ClientRow(
        client=client,
        role=latest.role,
        model=latest.model,
        samples=latest.num_samples,
        seconds=sum(event.seconds_training for event in rounds),
        bytes_up=sum(event.bytes_up for event in rounds),
        reused=all(event.reused for event in rounds),
    )
