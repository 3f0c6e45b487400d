"""Time per round: ours, in one process and on Ray, against a plain loop over rounds and clients.

    python benchmarks/rounds.py --methods fedavg feddm fedaf --preset fedaf-mnist-small \\
        --data-root DIR --json FILE

All run the same rounds of the same method with the same settings: both of ours to the same result,
the plain loop (plain_rounds.py) with random numbers of its own, so its accuracy is reported too.
The ways run in turn. Figures are medians over all rounds but the first, in which processes start.
Other arguments go to the launch.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from machine import Rows, describe_machine
from rich.console import Console
from rich.table import Table

from fl.json_files import JsonObject

PLAIN = "plain loop"
WAYS = {"ours, one process": "inprocess", "ours, on Ray": "ray"}
PARTS = ("local", "server", "overhead")
Timed = Literal["fedavg", "fedbn", "moon", "feddyn", "fedgen", "feddm", "fedaf"]
"""The methods that plain_rounds.py has."""
Row = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Times rounds."""

    methods: tuple[Timed, ...] = ("fedavg", "feddm", "fedaf")
    """Methods to time."""
    rounds: int = 4
    """Rounds of each run, 2 or more."""
    repeats: int = 1
    """Runs of each way."""
    json: Path | None = None
    """File that gets a line of JSON for each figure, as soon as it is known."""


def main() -> None:
    """Times every method in each way and prints a table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options, others = tyro.cli(Options, return_unknown_args=True)
    rows = Rows("rounds", options.json)
    rows.add(kind="machine", **describe_machine(device))
    table = Table("method", "way", "seconds a round", *PARTS, f"{PLAIN} over it", "last accuracy")
    for method in options.methods:
        medians = timed(method, options, others)
        for way, row in medians.items():
            row["speedup"] = medians[PLAIN]["total"] / row["total"]
            rows.add(kind="way", method=method, way=way, **row)
            seconds = [f"{row[name]:.3f}" if name in row else "" for name in ("total", *PARTS)]
            table.add_row(method, way, *seconds, f"{row['speedup']:.2f}", f"{row['accuracy']:.4f}")
    Console().print(table)


def timed(method: str, options: Options, others: list[str]) -> dict[str, Row]:
    """Median seconds of a round, in all and by kind, and the last accuracy, for each way."""
    rows: dict[str, list[Row]] = {PLAIN: [], **{way: [] for way in WAYS}}
    for _ in range(options.repeats):
        common = [f"--method={method}", f"--rounds={options.rounds}", *others]
        rows[PLAIN] += plain(common)
        for way, runtime in WAYS.items():
            rows[way] += launched([*common, f"--runtime={runtime}"])
    return {
        way: {name: statistics.median(row[name] for row in own) for name in own[0]}
        for way, own in rows.items()
    }


def plain(arguments: list[str]) -> list[Row]:
    """Each round of the plain loop but the first."""
    script = Path(__file__).with_name("plain_rounds.py")
    printed = json.loads(output_of([str(script), *arguments]).splitlines()[-1])
    last = printed["accuracies"][-1]
    return [{"total": seconds, "accuracy": last} for seconds in printed["seconds"][1:]]


def launched(arguments: list[str]) -> list[Row]:
    """Each round but the first of a run in a directory of its own, so that nothing is reused."""
    with tempfile.TemporaryDirectory() as folder:
        output_of(["-m", "cluster.launch", *arguments, f"--output-dir={folder}", "--name=run"])
        result: JsonObject = json.loads((Path(folder) / "run" / "result.json").read_text())
    rounds = [r["seconds"] for r in result["per_round"][1:]]
    return [{"total": sum(r.values()), **r, "accuracy": result["accuracy"]} for r in rounds]


def output_of(arguments: list[str]) -> str:
    """The output of a Python command."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
