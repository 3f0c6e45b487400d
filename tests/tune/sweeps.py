"""The sweep command in tests: on a federation so small that the trials' own start dominates."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from cluster.hardware.processes import ROOT
from tests.cluster.commands import environment, result
from tests.cluster.living import kill_with_family, wait_for
from tests.held import THERE, held
from tests.undrawn import undrawn

CLIENTS = 4
RUN = {
    "num_clients": CLIENTS,
    "data": {"max_train": 200, "max_test": 100},
    "classifier": {"width": 0.05, "epochs": 1},
    "generator": {"width": 0.1, "epochs": 2},
    "num_samples": 60,
    "fusion": {"epochs": 4, "lr": 1e-3},
}
SERVER_SPACE = {
    "keep": {"uniform": [0.4, 1.0]},
    "lam": [0.25, 0.75],
    "fusion": {"lr": {"loguniform": ["1e-4", "1e-2"]}},
}


def write(path: Path, values: Any) -> Path:
    path.write_text(yaml.safe_dump(values))
    return path


def command(root: Path, space: Any, *arguments: str) -> list[str]:
    """The sweep below ``root``, which also holds its configuration."""
    root.mkdir(exist_ok=True)
    return [
        *(sys.executable, "-m", "tune.sweep"),
        f"--config={write(root / 'run.yaml', RUN)}",
        f"--space={write(root / 'space.yaml', space)}",
        f"--output-dir={root / 'runs'}",
        *("--name=sweep", "--final-seeds=1"),
        *arguments,
    ]


def sweep(root: Path, space: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user does, from another directory with relative paths."""
    return run(command(root, space, *arguments))


def run(line: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        undrawn(line), capture_output=True, text=True, env=workplace(), check=False
    )


def kill_sweep(line: list[str], holding: Path, trial: str, enough: Callable[[], object]) -> None:
    """Starts the command, whose trial of that number goes no further than its start, and ends it
    and all its processes at once as soon as ``enough`` holds too.

    ``holding``: a folder to make for that.
    """
    process = subprocess.Popen(
        undrawn(line),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment() | held(holding, f'"event": "run_start".*"{trial}"'),
    )
    wait_for(process, lambda: (holding / THERE).exists() and enough())
    kill_with_family(process)


def workplace() -> dict[str, str]:
    """The environment in which Ray's workers find this checkout."""
    return {**environment(), "PYTHONPATH": str(ROOT)}


def trials(root: Path) -> dict[str, Any]:
    """The trials of ``result.json`` by name."""
    return {trial["name"]: trial for trial in result(root / "runs" / "sweep")["trials"]}
