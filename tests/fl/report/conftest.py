"""Run directories as runs leave them, small."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

CURVE = {1: 0.50, 2: 0.75, 3: 0.90, 4: 0.88}
START = 0.29
SCORES = [(0.2, 0.4, None, 0.3), (0.5, 0.7, None, 0.9)]
MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes a finished run of four clients; unfinished ones come of deleting files from it."""

    def make(
        name: str = "run",
        classes: int = 4,
        channels: int = 1,
        method: str = "fedmho",
        rounds: int = 1,
    ) -> Path:
        run_dir = tmp_path / name
        (run_dir / "synthetic").mkdir(parents=True)
        (run_dir / "config.yaml").write_text(yaml.safe_dump(_config(method)))
        result = _result(method, classes)
        events = _events()
        if rounds > 1:
            result |= {"protocol": "rounds", "rounds_to": {"0.5": 1, "0.8": rounds}}
            events += _rounds(rounds)
        (run_dir / "result.json").write_text(json.dumps(result))
        (run_dir / "partition.json").write_text(json.dumps(_partition(classes)))
        (run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in events))
        save_file(_samples(classes, channels), run_dir / "synthetic" / "samples.safetensors")
        return run_dir

    return make


@pytest.fixture
def make_scored(make_run: MakeRun) -> MakeRun:
    """Makes a finished run that scores its four clients, by accuracies round by round."""

    def make(
        name: str = "run",
        method: str = "fedper",
        accuracies: Sequence[Sequence[float | None]] = SCORES,
        **changes: Any,
    ) -> Path:
        run_dir = make_run(name, method=method)
        config = yaml.safe_load((run_dir / "config.yaml").read_text())
        settings = {"rounds": len(accuracies), "data": {"validation": 0.0}}
        (run_dir / "config.yaml").write_text(yaml.safe_dump(config | settings, sort_keys=False))
        means = [fmean(a for a in row if a is not None) for row in accuracies]
        events = [e for e in _events() if e["event"] != "epoch"]
        for event, row, mean in zip(_rounds(len(means)), accuracies, means, strict=True):
            events.append(event | {"accuracy": mean, "client_accuracy": list(row)})
        (run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in events))
        last = list(accuracies[-1])
        scored = {"scored_on": "clients", "accuracy": means[-1], "client_accuracy": last}
        best = {"best_accuracy": max(means), "best_epoch": 1 + means.index(max(means))}
        scored |= best | {"rounds": len(means), "ua": fmean(means), "dropped": {}}
        result = json.loads((run_dir / "result.json").read_text()) | scored | changes
        (run_dir / "result.json").write_text(json.dumps(result))
        return run_dir

    return make


def _config(method: str) -> dict[str, Any]:
    return {
        "method": method,
        "dataset": "digits",
        "alpha": 0.5,
        "num_clients": 4,
        "seed": 0,
        "fusion": {"epochs": 4, "lr": 0.0125},
        "versions": {"torch": "2.9.1"},
    }


def _result(method: str, classes: int) -> dict[str, Any]:
    return {
        "method": method,
        "protocol": "one-shot",
        "dataset": "digits",
        "alpha": 0.5,
        "clients": 4,
        "seed": 0,
        "accuracy": 0.88,
        "best_accuracy": 0.90,
        "best_epoch": 3,
        "start_accuracy": START,
        "per_class_accuracy": [0.8, None, *[0.9] * (classes - 2)],
        "bytes_up": 76_280_000,
        "bytes_down": 0,
        "seconds": {"local": 4.0, "synthesis": 1.0, "filter": 0.1, "fusion": 3.0, "total": 9.0},
        "partition": {"kind": "dirichlet", "hash": "9c1f2ab"},
        "synthetic": {"generated": 3000, "kept": 2400},
        "device": "cpu (2 cores)",
        "runtime": "ray",
        "versions": {"torch": "2.9.1"},
    }


def _partition(classes: int) -> dict[str, Any]:
    counts = np.random.default_rng(0).integers(0, 40, (4, classes))
    return {
        "kind": "dirichlet",
        "hash": "9c1f2ab",
        "alpha": 0.5,
        "counts": counts.tolist(),
        "class_names": [f"class {index}" for index in range(classes)],
        "roles": ["classifier", "classifier", "generator", "generator"],
    }


def _events() -> list[dict[str, Any]]:
    clients = [
        {
            "event": "client_end",
            "seconds": 1.0 + client,
            "client": client,
            "role": "classifier" if client < 2 else "generator",
            "model": "vgg9" if client < 2 else "cvae-small",
            "num_samples": 144,
            "seconds_training": 4.1,
            "bytes_up": 37_000_000 if client < 2 else 1_140_000,
            "reused": client == 1,
        }
        for client in range(4)
    ]
    epochs = [
        {
            "event": "epoch",
            "seconds": 5.0 + epoch,
            "stage": "fusion",
            "epoch": epoch,
            "epochs": 4,
            "loss": 1 / epoch,
            "accuracy": accuracy,
        }
        for epoch, accuracy in CURVE.items()
    ]
    return [{"event": "run_start", "seconds": 0.0, "run": "run"}, *clients, *epochs]


def _rounds(count: int) -> list[dict[str, Any]]:
    return [
        {
            "event": "round",
            "seconds": 10.0 * number,
            "round": number,
            "rounds": count,
            "accuracy": 0.5 + number / 100,
            "took": {"local": 8.0, "server": 1.5, "overhead": 0.25},
            "bytes_up": 1000,
            "bytes_down": 900,
        }
        for number in range(1, count + 1)
    ]


def _samples(classes: int, channels: int) -> dict[str, np.ndarray]:
    shades = np.linspace(30, 255, classes * 8).astype(np.uint8).reshape(classes, 8, 1, 1, 1)
    images = np.broadcast_to(shades, (classes, 8, channels, 14, 14)).copy()
    samples = {"before": images, "after": images.copy()}
    samples["before"][1] = samples["after"][1] = 0
    return samples
