"""Run directories as runs leave them, small."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from safetensors.numpy import save_file

from fl.report.course import Drawn
from fl.report.read import RunRecord

EMPTY: dict[str, Any] = {
    **{name: {} for name in ("result", "accuracy", "client_accuracy")},
    **{name: [] for name in ("clients", "failures", "rounds", "losses")},
    **dict.fromkeys(("partition", "samples", "sent", "last_event", "privacy")),
}
CURVE = {1: 0.50, 2: 0.75, 3: 0.90, 4: 0.88}
START = 0.29
SCORES = [(0.2, 0.4, None, 0.3), (0.5, 0.7, None, 0.9)]
PARTITION = {
    "kind": "dirichlet",
    "hash": "9c1f2ab",
    "counts": [[40, 0, 7, 9], [1, 2, 3, 4], [0, 0, 5, 30], [12, 8, 8, 0]],
    "class_names": [f"class {index}" for index in range(4)],
    "roles": ["classifier", "classifier", "generator", "generator"],
}
MakeRun = Callable[..., Path]


def record(**left: Any) -> RunRecord:
    """A run that has left this, and apart from it only its configuration."""
    return RunRecord(**{"path": Path("run"), "config": {}, **EMPTY, **left})


def drawn(figure: Drawn) -> tuple[Axes, str]:
    """The axes of a figure that has one pair of them, and its caption."""
    assert figure is not None
    figure[0].draw_without_rendering()
    (axes,) = figure[0].axes
    return axes, figure[1]


def names(axis: Axis) -> list[str]:
    """The labels of an axis."""
    return [label.get_text() for label in axis.get_ticklabels()]


def legend(axes: Axes) -> list[str]:
    """The entries of the legend."""
    shown = axes.get_legend()
    assert shown is not None
    return [text.get_text() for text in shown.get_texts()]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes a finished run of four clients; unfinished ones come of deleting files from it."""

    def make(
        name: str = "run",
        method: str = "fedmho",
        rounds: int = 1,
        settings: Mapping[str, Any] = {},
        result: Mapping[str, Any] = {},
        events: Sequence[Any] | None = None,
    ) -> Path:
        run_dir = tmp_path / name
        (run_dir / "synthetic").mkdir(parents=True)
        config = {**_config(method), **settings}
        (run_dir / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        found = {**_result(method), **result}
        told = [*_events(), *(_rounds(rounds) if rounds > 1 else [])] if events is None else events
        if rounds > 1:
            found |= {"protocol": "rounds", "rounds_to": {"0.5": 1, "0.8": rounds}}
        (run_dir / "result.json").write_text(json.dumps(found))
        (run_dir / "partition.json").write_text(json.dumps(PARTITION))
        (run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in told))
        save_file(_samples(), run_dir / "synthetic" / "samples.safetensors")
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
        means = [fmean(a for a in row if a is not None) for row in accuracies]
        events = [e for e in _events() if e["event"] != "epoch"]
        for event, row, mean in zip(_rounds(len(means)), accuracies, means, strict=True):
            events.append(event | {"accuracy": mean, "client_accuracy": list(row)})
        scored = {"scored_on": "clients", "accuracy": means[-1], "ua": fmean(means), "dropped": {}}
        scored |= {"best_accuracy": max(means), "best_epoch": 1 + means.index(max(means))}
        scored |= {"client_accuracy": list(accuracies[-1]), "rounds": len(means), **changes}
        settings = {"rounds": len(means), "data": {"validation": 0.0}}
        return make_run(name, method, settings=settings, result=scored, events=events)

    return make


def _config(method: str) -> dict[str, Any]:
    return {"method": method} | yaml.safe_load(
        "{dataset: digits, alpha: 0.5, num_clients: 4, seed: 0, fusion: {epochs: 4, lr: 0.0125},"
        " versions: {torch: 2.9.1}}"
    )


def _result(method: str) -> dict[str, Any]:
    own = {"method": method, "per_class_accuracy": [0.8, None, 0.9, 0.9]}
    return own | yaml.safe_load(
        "{protocol: one-shot, dataset: digits, alpha: 0.5, clients: 4, seed: 0, accuracy: 0.88,"
        " best_accuracy: 0.9, best_epoch: 3, start_accuracy: 0.29, bytes_up: 76280000,"
        " bytes_down: 0, partition: {kind: dirichlet, hash: 9c1f2ab},"
        " seconds: {local: 4.0, synthesis: 1.0, filter: 0.1, fusion: 3.0, total: 9.0},"
        " synthetic: {generated: 3000, kept: 2400}, device: cpu, runtime: ray}"
    )


def _events() -> list[dict[str, Any]]:
    kinds = [("classifier", "vgg9", 37_000_000)] * 2 + [("generator", "cvae-small", 1_140_000)] * 2
    shared = {"event": "client_end", "num_samples": 144, "seconds_training": 4.1}
    clients = [
        shared | {"client": k, "role": role, "model": model, "bytes_up": sent, "reused": k == 1}
        for k, (role, model, sent) in enumerate(kinds)
    ]
    epochs = [
        {"event": "epoch", "stage": "fusion", "epoch": k, "epochs": 4, "loss": 1, "accuracy": a}
        for k, a in CURVE.items()
    ]
    return [{"event": "run_start", "run": "run"}, *clients, *epochs]


def _rounds(count: int) -> list[dict[str, Any]]:
    took = {"local": 8.0, "server": 1.5, "overhead": 0.25}
    shared = {"event": "round", "rounds": count, "took": took, "bytes_up": 9, "bytes_down": 9}
    return [shared | {"round": k, "accuracy": 0.5 + k / 100} for k in range(1, count + 1)]


def _samples() -> dict[str, np.ndarray]:
    shades = np.linspace(30, 255, 32).astype(np.uint8).reshape(4, 8, 1, 1, 1)
    images = np.tile(shades, (1, 1, 1, 14, 14))
    images[1] = 0
    return {"before": images, "after": images.copy()}
