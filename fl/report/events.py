"""What metrics.jsonl tells: which clients reported, and the accuracy after each fusion epoch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]


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
class RoundRow:
    """What one round came to."""

    number: int
    accuracy: float
    seconds: dict[str, float]
    """Of its parts: local, server, overhead."""
    bytes_up: int


@dataclass(frozen=True)
class Failure:
    """An attempt of a client that failed, and why."""

    client: int
    attempt: int | None
    """None for a client that was left out of the result."""
    reason: str


def read_events(path: Path) -> list[Event]:
    """Every complete event of a metrics file, in order; none when there is no file.

    A run that was killed leaves half a line, in the middle of the file once it has been resumed.
    """
    if not path.exists():
        return []
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def fusion_accuracy(events: list[Event]) -> dict[int, float]:
    """Epoch to accuracy, ascending. Where a resumed run went back, what it then did counts."""
    found: dict[int, float] = {}
    for event in events:
        match event:
            case {"event": "epoch", "stage": "fusion", "epoch": int(epoch), "accuracy": accuracy}:
                found = {earlier: found[earlier] for earlier in found if earlier < epoch}
                found[epoch] = accuracy
    return found


def round_rows(events: list[Event]) -> list[RoundRow]:
    """The rounds of a run of many, ascending; what a resumed run did again counts."""
    found: dict[int, RoundRow] = {}
    for event in events:
        match event:
            case {"event": "round", "round": int(number), "rounds": int(of)} if of > 1:
                took, sent = event["took"], event["bytes_up"]
                found[number] = RoundRow(number, event["accuracy"], took, sent)
    return [found[number] for number in sorted(found)]


def client_rows(events: list[Event]) -> dict[int, ClientRow]:
    """What each client reported, summed over the rounds of a method that has many."""
    ends: list[Event] = []
    before: list[Event] = []
    for event in events:
        match event:
            case {"event": "run_start"}:  # a resumed run reports all of its clients again,
                before, ends = before + ends, []
            case {"event": "rounds_resumed", "round": int(done)}:  # but for the rounds it had done
                ends = [end for end in before if end.get("round", 1) <= done]
            case {"event": "client_end", "client": int()}:
                ends.append(event)
    by_client: dict[int, list[Event]] = {}
    for end in ends:
        by_client.setdefault(end["client"], []).append(end)
    return {client: _row(client, by_client[client]) for client in sorted(by_client)}


def client_failures(events: list[Event]) -> list[Failure]:
    """The attempts that failed since the run was last started, in the order of their failing."""
    failures: list[Failure] = []
    for event in events:
        match event:
            case {"event": "run_start"}:
                failures.clear()
            case {"event": "client_failed", "client": int(client), "attempt": int(attempt)}:
                failures.append(Failure(client, attempt, str(event.get("reason", "unknown"))))
            case {"event": "client_dropped", "client": int(client)}:
                failures.append(Failure(client, None, str(event.get("reason", "unknown"))))
    return failures


def _row(client: int, rounds: list[Event]) -> ClientRow:
    latest = rounds[-1]
    return ClientRow(
        client=client,
        role=str(latest.get("role", "client")),
        model=latest.get("model"),
        samples=latest.get("num_samples"),
        seconds=sum(event.get("seconds_training") or 0.0 for event in rounds),
        bytes_up=sum(event.get("bytes_up") or 0 for event in rounds),
        reused=all(event.get("reused", False) for event in rounds),
    )
