"""Reads a run directory, finished or not, into one record that the report is made of."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fl.errors import UserError
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
from fl.json_files import JsonObject, read_json
from fl.report.scores import Alone, Scores, find_alone, scores_of
from fl.whole_files import no_pipe

REAL = "real_images"
"""Name of real images among a run's samples. Older runs call them ``real`` and have them unasked,
so a report that is drawn again leaves them out."""
UUID_LETTERS = 12  # of "GPU-8f3c2d1e-…": enough to distinguish the devices of a run


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


@dataclass(frozen=True)
class Placed:
    """Where and when a client was trained; times in seconds since the run began."""

    client: int
    role: str
    node: str
    device: str
    """The start of a GPU's UUID; empty for the cores."""
    start: float
    end: float
    attempts: int

    @property
    def where(self) -> str:
        """Its node, its GPU if it had one, and its attempts if they were several."""
        tries = f"{self.attempts} attempts" if self.attempts > 1 else ""
        return ", ".join(part for part in (self.node, self.device, tries) if part)


@dataclass(frozen=True)
class Partition:
    """How many samples of each class every client has: counts is clients x classes."""

    kind: str
    hash: str
    counts: NDArray[np.int64]
    class_names: list[str]
    roles: list[str]


@dataclass(frozen=True)
class SentImages:
    """Examples of what left clients, uint8 (n, channels, height, width), and their classes."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class RunRecord:
    """What a run directory holds. An interrupted run has no result, and may lack the rest."""

    path: Path
    config: JsonObject
    result: JsonObject | None
    clients: list[ClientRow]
    failures: list[Failure]
    placements: dict[int, Placed]
    accuracy: dict[int, float]
    """After each round where there were many, else after each epoch of fusion."""
    client_accuracy: dict[int, list[float | None]]
    """After each round, by client id, where each client was scored."""
    alone: Alone | None
    """The same clients without any exchange, where this run is finished and one lies beside it."""
    rounds: list[RoundRow]
    in_rounds: bool
    """Whether the clients trained in many rounds."""
    losses: list[LossCurve]
    """Of the clients that trained in epochs."""
    confusion: NDArray[np.int64] | None
    """Test samples by true (row) and predicted class (column); None without a global model."""
    partition: Partition | None
    samples: dict[str, NDArray[np.uint8]] | None
    """Example images ``before`` and ``after`` the filter, and ``real_images`` where asked for: each
    of shape (classes, examples, channels, height, width), zeros for an image that is missing."""
    sent: SentImages | None
    last_event: Event | None
    privacy: JsonObject | None = None
    """What ``onefold privacy`` measured, if it did."""

    @property
    def step(self) -> str:
        """The unit by which the accuracies are counted."""
        return "round" if self.rounds or self.client_accuracy else "epoch"

    @property
    def scores(self) -> Scores | None:
        """The clients' accuracies after the last round; None where they were not scored."""
        latest = (self.result or {}).get("client_accuracy")
        if not latest and self.client_accuracy:
            latest = self.client_accuracy[max(self.client_accuracy)]
        return scores_of(latest or [])


def read_run(run_dir: Path) -> RunRecord:
    """Reads a run directory; UserError if it is none, or if a file in it is damaged."""
    events = read_events(run_dir / "metrics.jsonl")
    partition = _read_partition(run_dir / "partition.json")
    result = _read_json(run_dir / "result.json")
    rounds = round_rows(events)
    config = _read_config(run_dir)
    in_rounds = (config.get("rounds") or len(rounds)) > 1
    return RunRecord(
        path=run_dir,
        config=config,
        result=result,
        clients=_all_clients(client_rows(events), partition),
        failures=client_failures(events),
        placements=read_placements(result),
        accuracy={r.number: r.accuracy for r in rounds} or fusion_accuracy(events),
        client_accuracy=client_accuracy(events),
        alone=find_alone(run_dir, config, result or {}),
        rounds=rounds,
        in_rounds=in_rounds,
        losses=client_losses(events, in_rounds=in_rounds),
        confusion=_confusion(result or {}),
        partition=partition,
        samples=_read_samples(run_dir / "synthetic" / "samples.safetensors"),
        sent=_read_sent(run_dir / "sent" / "examples.safetensors"),
        last_event=events[-1] if events else None,
        privacy=_read_json(run_dir / "privacy.json"),
    )


def _read_config(run_dir: Path) -> JsonObject:
    path = run_dir / "config.yaml"
    if not path.is_file():
        raise UserError(f"{run_dir} is not a run directory: it has no config.yaml")
    try:
        config = yaml.safe_load(path.read_bytes().decode())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise UserError(f"{path} is not valid YAML") from None
    config = _mapping(config, path)
    if not config.keys() >= {"method", "dataset"}:
        raise UserError(f"{run_dir} is not a run directory: config.yaml names no method or data")
    return config


def _read_json(path: Path) -> JsonObject | None:
    return read_json(path) if path.exists() else None


def _mapping(value: object, path: Path) -> JsonObject:
    if not isinstance(value, dict):
        raise UserError(f"{path} does not hold a mapping")
    return value


def _confusion(result: JsonObject) -> NDArray[np.int64] | None:
    rows = result.get("confusion")
    if rows is None:
        return None
    try:
        counts = np.array(rows, dtype=np.int64).reshape(len(rows), len(rows))
        if (counts >= 0).all():
            return counts
    except (ValueError, TypeError, OverflowError):
        pass
    raise UserError("result.json holds a confusion that is no square of counts")


def _read_partition(path: Path) -> Partition | None:
    content = _read_json(path)
    if content is None:
        return None
    try:
        names, roles = list(map(str, content["class_names"])), list(map(str, content["roles"]))
        counts = np.array(content["counts"], dtype=np.int64).reshape(len(roles), len(names))
        return Partition(content["kind"], content["hash"], counts, names, roles)
    except (KeyError, ValueError, TypeError):
        raise UserError(f"{path} does not hold a partition: kind, hash, counts, names") from None


def _read_samples(path: Path) -> dict[str, NDArray[np.uint8]] | None:
    return _read_tensors(path, "before", "after") if path.exists() else None


def _read_sent(path: Path) -> SentImages | None:
    if not path.exists():
        return None
    tensors = _read_tensors(path, "images", "labels")
    return SentImages(tensors["images"], tensors["labels"])


def _read_tensors(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """The tensors of a file, which must hold these."""
    try:
        tensors = load_file(no_pipe(path))
    except SafetensorError:
        tensors = {}
    if not tensors.keys() >= set(names):
        raise UserError(f"{path} does not hold the tensors {', '.join(names)}")
    return tensors


def _all_clients(rows: dict[int, ClientRow], partition: Partition | None) -> list[ClientRow]:
    """The clients that reported, and those the partition names that have not."""
    silent = {}
    if partition is not None:
        sizes = partition.counts.sum(axis=1).tolist()
        silent = {
            client: ClientRow(client, role, samples=samples)
            for client, (role, samples) in enumerate(zip(partition.roles, sizes, strict=True))
        }
    return [row for _, row in sorted((silent | rows).items())]


def read_placements(result: JsonObject | None) -> dict[int, Placed]:
    """The clients that this run trained; none where the result has no placements.

    Raises:
        UserError: an entry lacks a field that is needed here.
    """
    try:
        entries = (result or {}).get("placements") or []
        return {e["client"]: _placed(e) for e in entries if None not in (e["start"], e["end"])}
    except (KeyError, TypeError, ValueError):
        raise UserError("result.json holds placements without client, node or times") from None


def _placed(entry: JsonObject) -> Placed:
    return Placed(
        client=int(entry["client"]),
        role=str(entry["role"]),
        node=str(entry["node"] or ""),
        device=str(entry["device_uuid"] or "")[:UUID_LETTERS],
        start=float(entry["start"]),
        end=float(entry["end"]),
        attempts=int(entry["attempts"]),
    )


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
