"""Reads a run directory, finished or not, into one record that the report is made of."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fl.errors import UserError
from fl.events import Event
from fl.json_files import read_json
from fl.json_values import JsonObject
from fl.report.alone import Alone, find_alone
from fl.report.events import (
    ClientRow,
    Failure,
    LossCurve,
    RoundRow,
    client_accuracy,
    client_failures,
    client_losses,
    client_rows,
    fusion_accuracy,
    read_events,
    round_rows,
)
from fl.report.placements import Placed, read_placements
from fl.report.scores import Scores, scores_of
from fl.whole_files import no_pipe


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
    """Example images ``before`` and ``after`` the filter, and ``real`` where asked for: each of
    shape (classes, examples, channels, height, width), zeros for an image that does not exist."""
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
