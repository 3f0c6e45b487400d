"""The launch command in tests: small enough to run many times."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from cluster.launch import main
from fl.json_files import read_json
from fl.report.read import read_events
from tests.undrawn import WRITE_REPORT, draw_nothing, undrawn

SMALL = [
    "--num-clients=4",
    "--data.max-train=200",
    "--data.max-test=100",
    "--classifier.width=0.05",
    "--classifier.epochs=1",
    "--generator.width=0.1",
    "--generator.epochs=2",
    "--num-samples=60",
    "--fusion.epochs=2",
]


def command(output_dir: Path, *arguments: str) -> list[str]:
    where = f"--output-dir={output_dir}"
    return [sys.executable, "-m", "cluster.launch", *SMALL, where, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def launch(
    output_dir: Path, *arguments: str, config: Path | None = None, drawn: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user does; with ``config`` that file takes the small one's place."""
    line = command(output_dir, *arguments)
    if config is not None:
        line = [a for a in line if a not in SMALL] + [f"--config={config}"]
    return run(line, drawn=drawn)


def run(
    line: list[str], *, drawn: bool = False, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m cluster.launch`` and its arguments, with these variables in the environment.

    What starts no other process runs in this one, since a process takes seconds for its imports.

    Args:
        line: the command.
        drawn: with the run's report.
        environ: variables.
    """
    if not {"--runtime=inprocess", "--dry-run"}.isdisjoint(line):
        return here(main, line[3:], drawn=drawn, **environ)
    return subprocess.run(
        line if drawn else undrawn(line),
        capture_output=True,
        text=True,
        env=environment() | environ,
        check=False,
    )


def here(
    command: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    *,
    drawn: bool = False,
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    """Runs the command in this process, in the environment that one of its own would have."""
    out, err = io.StringIO(), io.StringIO()
    with (
        _undone_afterwards(),
        contextlib.nullcontext() if drawn else mock.patch(WRITE_REPORT, draw_nothing),
        mock.patch.dict(os.environ, environment() | environ),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        torch.set_num_threads(1)
        status = command(arguments)
    return subprocess.CompletedProcess(list(arguments), status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _undone_afterwards() -> Iterator[None]:
    """A command sets how many threads there are, and what signals do, for its process's life."""
    threads = torch.get_num_threads()
    handlers = {stop: signal.getsignal(stop) for stop in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        for stop, handler in handlers.items():
            signal.signal(stop, handler)


def result(run_dir: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = read_json(run_dir / "result.json")
    return loaded


def events(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def kinds(run_dir: Path) -> list[str]:
    """What a run that is at work has told so far: it may have written half of a line."""
    return [event.name for event in read_events(run_dir / "metrics.jsonl")]


def fingerprint(run_dir: Path) -> tuple[bytes, Any, Any]:
    """What two equal runs have in common: the model's bytes, the figures and the updates."""
    updates = {}
    from safetensors.torch import load_file

    for path in sorted((run_dir / "updates").iterdir()):
        updates[path.name] = {n: t.tolist() for n, t in load_file(path).items()}
    return (run_dir / "model" / "global.safetensors").read_bytes(), figures(run_dir), updates


def figures(run_dir: Path) -> Any:
    """Every figure of a run but times and how often ranks were replaced."""
    found = result(run_dir)
    for name in ("seconds", "runtime", "versions", "placements", "makespan"):
        found.pop(name, None)
    found.get("fusion", {}).pop("restarts", None)
    return found
