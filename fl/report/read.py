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
from fl.whole_files import no_pipe

REAL = "real_images"
"""Name of real images among a run's samples."""
Images = NDArray[np.uint8]

# What a run left. A field is None where the run has not recorded it, or not yet.


@dataclass(frozen=True)
class ClientRow:
    """One client's line in the report, summed over the rounds."""

    client: int
    role: str
    model: str | None = None
    samples: int | None = None
    seconds: float | None = None
    bytes_up: int | None = None
    reused: bool | None = None


@dataclass(frozen=True)
class LossCurve:
    """A client's mean training loss, by epoch or by parts of its steps."""

    client: int
    role: str
    model: str | None
    steps: list[float]
    """When each epoch or part ended, in the curve's unit."""
    losses: list[float]
    """NaN where it was not finite."""
    unit: str = "epoch"
    """``round`` in a run of many rounds, else ``epoch`` or ``step``."""


METRICS = {"accuracy": "Accuracy", "R2": "R\N{SUPERSCRIPT TWO}"}


@dataclass(frozen=True)
class Partition:
    """How many samples of each class every client has: counts is clients x classes."""

    kind: str
    hash: str
    counts: NDArray[np.int64]
    class_names: list[str]
    roles: list[str]


@dataclass(frozen=True)
class RunRecord:
    """What a run directory holds. An interrupted run has no result, and may lack the rest."""

    path: Path
    config: JsonObject
    result: JsonObject
    """Empty while the run is unfinished."""
    clients: list[ClientRow]
    failures: list[AttemptFailed | ClientDropped]
    """Those since the run was last started."""
    accuracy: dict[int, float]
    """After each round if there were many, else after each epoch of fusion."""
    client_accuracy: dict[int, list[float | None]]
    """Each client's after each round, by client id; empty if clients were not scored."""
    rounds: list[RoundEnd]
    """Those of a run of many."""
    losses: list[LossCurve]
    partition: Partition | None
    samples: dict[str, Images] | None
    """Example images ``before`` and ``after`` the filter, and ``real_images`` if asked for: each of
    shape (classes, examples, channels, height, width), zeros for an image that is missing."""
    sent: dict[str, NDArray[Any]] | None
    """Examples of what left clients: ``images`` (n, channels, height, width) and ``labels``."""
    last_event: Event | None
    privacy: JsonObject | None
    """What ``onefold privacy`` measured."""
    metric: str = "accuracy"
    """What the figures called accuracy are: that, or R2 of values."""
    reused: bool = False
    """Whether some training was taken from the store: the times are without it."""

    @property
    def metric_name(self) -> str:
        """The metric in words, at the beginning of a sentence."""
        return METRICS.get(self.metric, self.metric)

    @property
    def tested_on(self) -> str:
        """The samples that the figures called accuracy are of."""
        held_out = (self.config.get("data") or {}).get("validation")
        return "held-out training samples" if held_out else "test samples"

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.path.resolve().name

    @property
    def step(self) -> str:
        """The unit by which the accuracies are counted."""
        return "round" if self.rounds or self.client_accuracy else "epoch"

    @property
    def curve(self) -> dict[int, float]:
        """Accuracy by round or epoch; at 0 that before the first, if it is known."""
        start = self.result.get("start_accuracy")
        return self.accuracy if start is None else {0: start, **self.accuracy}

    @property
    def scores(self) -> dict[int, float]:
        """Accuracy after the last round by the id of each client that was scored, if any was."""
        latest = self.result.get("client_accuracy")
        if not latest and self.client_accuracy:
            latest = self.client_accuracy[max(self.client_accuracy)]
        return {k: accuracy for k, accuracy in enumerate(latest or []) if accuracy is not None}

    @property
    def placements(self) -> list[JsonObject]:
        """Where and when clients were trained, of those that this run trained."""
        return [
            e for e in self.result.get("placements") or [] if None not in (e["start"], e["end"])
        ]

    def class_names(self, classes: int) -> list[str]:
        """The partition's, if it has as many classes; else their numbers."""
        names = self.partition.class_names if self.partition else []
        return names if len(names) == classes else [str(index) for index in range(classes)]


def read_run(run_dir: Path) -> RunRecord:
    """Reads a run directory; UserError if it is none, or if a file in it is damaged."""
    config = _read_config(run_dir)
    events = read_events(run_dir / "metrics.jsonl")
    partition = _read_partition(run_dir / "partition.json")
    ends = {event.round: event for event in events if isinstance(event, RoundEnd)}
    rounds = [ends[number] for number in sorted(ends)]
    many = [r for r in rounds if r.rounds > 1]
    return RunRecord(
        path=run_dir,
        config=config,
        result=_read_json(run_dir / "result.json") or {},
        clients=_all_clients(client_rows(events), partition),
        failures=client_failures(events),
        accuracy={r.round: r.accuracy for r in many} or fusion_accuracy(events),
        client_accuracy={
            r.round: r.client_accuracy for r in rounds if {*r.client_accuracy} - {None}
        },
        rounds=many,
        losses=client_losses(events, in_rounds=(config.get("rounds") or len(rounds)) > 1),
        partition=partition,
        samples=_read_tensors(run_dir / "synthetic" / "samples.safetensors", "before", "after"),
        sent=_read_tensors(run_dir / "sent" / "examples.safetensors", "images", "labels"),
        last_event=events[-1] if events else None,
        privacy=_read_json(run_dir / "privacy.json"),
        metric=next((e.metric for e in events if isinstance(e, RunStart)), "accuracy"),
        reused=any(end.reused for ends in client_ends(events).values() for end in ends),
    )


# Its files, each of which may be missing or damaged.


def _read_config(run_dir: Path) -> JsonObject:
    path = run_dir / "config.yaml"
    if not path.is_file():
        raise UserError(f"{run_dir} is not a run directory: it has no config.yaml")
    try:
        config = yaml.safe_load(path.read_bytes().decode())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise UserError(f"{path} is not valid YAML") from None
    if not isinstance(config, dict) or not config.keys() >= {"method", "dataset"}:
        raise UserError(f"{run_dir} is not a run directory: config.yaml names no method or data")
    return config


def _read_json(path: Path) -> JsonObject | None:
    return read_json(path) if path.exists() else None


def _read_partition(path: Path) -> Partition | None:
    content = _read_json(path)
    if content is None:
        return None
    names, roles = content["class_names"], content["roles"]
    counts = np.array(content["counts"], dtype=np.int64).reshape(len(roles), len(names))
    return Partition(content["kind"], content["hash"], counts, names, roles)


def _read_tensors(path: Path, *names: str) -> dict[str, NDArray[Any]] | None:
    """The tensors of a file, which must hold these."""
    if not path.exists():
        return None
    try:
        tensors = load_file(no_pipe(path))
    except SafetensorError:
        tensors = {}
    if not tensors.keys() >= set(names):
        raise UserError(f"{path} does not hold the tensors {', '.join(names)}")
    return tensors


def _all_clients(rows: dict[int, ClientRow], partition: Partition | None) -> list[ClientRow]:
    """The clients that reported, and those the partition names that have not."""
    found = {}
    if partition is not None:
        sizes = partition.counts.sum(axis=1).tolist()
        for client, (role, samples) in enumerate(zip(partition.roles, sizes, strict=True)):
            found[client] = ClientRow(client, role, samples=samples)
    return [row for _, row in sorted((found | rows).items())]


# What its events say. A resumed run repeats some of them; the later ones count.


def read_events(path: Path) -> list[Event]:
    """Every complete event of a metrics file, in order; none when there is no file."""
    if not path.exists():
        return []
    text = no_pipe(path).read_text(encoding="utf-8", errors="replace")
    return list(parse_events(text.split("\n")))


def fusion_accuracy(events: list[Event]) -> dict[int, float]:
    """Accuracy by epoch of fusion, ascending."""
    found: dict[int, float] = {}
    for event in events:
        if isinstance(event, Epoch) and event.stage == "fusion":
            found = {earlier: found[earlier] for earlier in found if earlier < event.epoch}
            found[event.epoch] = event.accuracy
    return found


def client_rows(events: list[Event]) -> dict[int, ClientRow]:
    """What each client reported, summed over the rounds, by client id."""
    return {
        client: ClientRow(
            client=client,
            role=ends[-1].role,
            model=ends[-1].model,
            samples=ends[-1].num_samples,
            seconds=sum(end.seconds_training for end in ends),
            bytes_up=sum(end.bytes_up for end in ends),
            reused=all(end.reused for end in ends),
        )
        for client, ends in client_ends(events).items()
    }


def client_losses(events: list[Event], *, in_rounds: bool = False) -> list[LossCurve]:
    """The curves of the clients that reported losses, by client id."""
    with_losses = {k: [e for e in ends if e.losses] for k, ends in client_ends(events).items()}
    return [_curve(ends, in_rounds) for ends in with_losses.values() if ends]


def _curve(ends: list[ClientEnd], in_rounds: bool) -> LossCurve:
    last = ends[-1]
    losses = [n if math.isfinite(n) else math.nan for end in ends for n in end.losses]
    unit, length = "epoch", 1.0
    if "steps" in last.stats and "epochs" not in last.stats:
        unit, length = "step", last.stats["steps"] / len(last.losses)
    steps = [length * (index + 1) for index in range(len(losses))]
    if in_rounds:
        unit, counts = "round", [(end.round, len(end.losses)) for end in ends]
        steps = [number - 1 + (k + 1) / count for number, count in counts for k in range(count)]
    return LossCurve(last.client, last.role, last.model, steps, losses, unit)


def client_ends(events: list[Event]) -> dict[int, list[ClientEnd]]:
    """What each client reported, over all rounds and starts, in order, by client id."""
    ends: list[ClientEnd] = []
    before: list[ClientEnd] = []
    for event in events:
        match event:
            case RunStart():  # a resumed run reports all of its clients again,
                before, ends = ends or before, []
            case RoundsResumed(round=done):  # except those of the rounds it had done
                before, ends = [], [end for end in before if end.round <= done]
            case ClientEnd():
                ends.append(event)
    by_client: dict[int, list[ClientEnd]] = {}
    for end in ends:
        by_client.setdefault(end.client, []).append(end)
    return {client: by_client[client] for client in sorted(by_client)}


def client_failures(events: list[Event]) -> list[AttemptFailed | ClientDropped]:
    """The failures since the run was last started, in their order."""
    starts = [place for place, event in enumerate(events) if isinstance(event, RunStart)]
    since = events[max(starts, default=0) :]
    return [event for event in since if isinstance(event, AttemptFailed | ClientDropped)]
