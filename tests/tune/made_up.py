"""Trials that nobody ran: their directories as a sweep reads them."""

import json
from pathlib import Path
from typing import Any

from cluster.hardware.inventory import Inventory
from fl.federation import Client, Request
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig


def event(kind: str, seconds: float, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "seconds": seconds, **fields}


def epoch(number: int, accuracy: float, seconds: float, stage: str = "fusion") -> dict[str, Any]:
    figures = {"accuracy": accuracy, "loss": 1 - accuracy}
    return event("epoch", seconds, stage=stage, epoch=number, epochs=3, **figures)


def end(client: int, took: float, *, reused: bool, **more: Any) -> dict[str, Any]:
    return event("client_end", 1.0, client=client, seconds_training=took, reused=reused, **more)


def trial(
    folder: Path, name: str, settings: dict[str, Any], *events: Any, finished: bool = True
) -> Path:
    """A trial's directory below the folder."""
    path = folder / name
    path.mkdir(parents=True)
    (path / "settings.json").write_text(json.dumps(settings))
    lines = [json.dumps(e) for e in (event("run_start", 0.0), *events)]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if finished:
        (path / "result.json").write_text("{}")
    return path


def members() -> list[Client]:
    """Two clients, of whom the second asks for half as many cores."""
    trainings = (ClassifierConfig(), GeneratorConfig())
    return [
        Client(id=k, role="r", training=t, num_samples=9, request=Request(cpus=1 / (k + 1), gpus=0))
        for k, t in enumerate(trainings)
    ]


INVENTORY = Inventory(node="n", cpus=2, memory_bytes=10**9, gpus=(), source="machine")
