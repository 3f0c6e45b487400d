"""Time per round: clients on Ray against the same clients one after another in this process.

    python benchmarks/rounds.py --preset mnist-small --data-root DIR --json FILE

Both play the same rounds of the same method to the same result; ways take turns. Figures are
medians over the rounds but the first, in which processes start. Other arguments go to the launch.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from distance import describe_machine
from rich.console import Console
from rich.table import Table

WAYS = {"one after another": "inprocess", "on Ray": "ray"}
BASELINE = next(iter(WAYS))
PARTS = ("local", "server", "overhead")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Times rounds."""

    methods: tuple[str, ...] = ("fedavg",)
    """Methods that have rounds."""
    rounds: int = 4
    """Rounds of each run, 2 or more."""
    repeats: int = 1
    """Runs of each way."""
    json: Path | None = None
    """File to write the figures to."""


def main() -> None:
    """Times every method both ways and prints a table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options, others = tyro.cli(Options, return_unknown_args=True)
    figures: dict[str, Any] = {"machine": describe_machine(device), "methods": {}}
    table = Table("method", "way", "seconds a round", *PARTS, f"{BASELINE} over it")
    for method in options.methods:
        told = timed(method, options, others)
        figures["methods"][method] = told
        for way, row in told.items():
            ratio = told[BASELINE]["total"] / row["total"]
            seconds = [f"{row[name]:.3f}" for name in ("total", *PARTS)]
            table.add_row(method, way, *seconds, f"{ratio:.2f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


def timed(method: str, options: Options, others: list[str]) -> dict[str, dict[str, float]]:
    """Median seconds of a round and of its parts, by way."""
    rows: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        accuracies = set()
        for way, runtime in WAYS.items():
            result = launch(method, runtime, options.rounds, others)
            rows[way] += [r["seconds"] for r in result["per_round"][1:]]
            accuracies.add(tuple(result["accuracy_curve"]))
        if len(accuracies) > 1:
            print(f"{method}: the ways do not agree: {sorted(accuracies)}", file=sys.stderr)
    return {
        way: {
            "total": statistics.median(sum(row.values()) for row in own),
            **{part: statistics.median(row[part] for row in own) for part in PARTS},
        }
        for way, own in rows.items()
    }


def launch(method: str, runtime: str, rounds: int, others: list[str]) -> dict[str, Any]:
    """Runs it in a directory of its own, so that nothing is reused; returns its result."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cluster.launch", *others]
        command += [f"--method={method}", f"--rounds={rounds}", f"--runtime={runtime}"]
        subprocess.run([*command, f"--output-dir={folder}", "--name=run"], check=True)
        result: dict[str, Any] = json.loads((Path(folder) / "run" / "result.json").read_text())
        return result


if __name__ == "__main__":
    main()
