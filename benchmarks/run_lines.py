"""What each run of a table found: a file of lines of JSON, one for each cell and seed.

A table takes longer than a machine is held. So a run's line is written when the run ends, and a
line of the same settings and the same code stands in for a run.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from cluster.clients.locks import Locks
from cluster.run.run_dir import nested
from cluster.studies.comparison import Cell, Figure
from cluster.studies.suite_runs import Runs
from fl.config import RunConfig
from fl.json_files import JsonObject
from fl.whole_files import write_atomically

Lines = Mapping[tuple[Cell, int], JsonObject]
"""Lines by cell and seed."""
LEFT_OUT = ("placements", "confusion")
"""Parts of a result that no table reads, and that are longer than all else."""


@dataclass(frozen=True)
class Provenance:
    """Where a figure comes from."""

    date: str
    commit: str
    machine: str


def digest(run: RunConfig[Any]) -> str:
    """Of all that determines the run's result beside the code; equal for equal settings."""
    settings = json.loads(json.dumps(nested(run)), parse_int=float)  # as 1 == 1.0
    return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def read(path: Path) -> dict[tuple[str, int], JsonObject]:
    """The lines by name of the cell and seed; none where there is no file."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {(line["cell"], line["seed"]): line for line in lines}


def standing(path: Path, runs: Runs, same_code: Callable[[str], bool]) -> Lines:
    """The lines that stand in for runs: of the same settings, and of a commit with the same code.

    Args:
        path: the file of lines; it may be missing.
        runs: what would be run.
        same_code: whether a commit's code gives today's figures.
    """
    lines = read(path)
    found = {}
    for (cell, seed), launch in runs.items():
        line = lines.get((cell.name, seed), {})
        if line.get("settings") == digest(launch.run) and same_code(line["provenance"]["commit"]):
            found[cell, seed] = line
    return found


def origin(lines: Lines, runs: int) -> str:
    """How many of a table's runs there are, and their commits and days."""
    made = {(line["provenance"]["commit"], line["provenance"]["date"]) for line in lines.values()}
    commits = ", ".join(f"{commit} ({date})" for commit, date in sorted(made, key=lambda m: m[1]))
    return f"{len(lines)} of {runs} runs, of commit{'s' if len(made) > 1 else ''} {commits}"


def write(path: Path, figure: Figure, seed: int, run: RunConfig[Any], made: Provenance) -> None:
    """Writes a run's line; it replaces an older one of the cell and seed.

    Args:
        figure: of this run alone.
    """
    (found,), (losses,), (clients,) = figure.results, figure.losses, figure.client_losses
    line = {
        "cell": figure.cell.name,
        "seed": seed,
        "provenance": vars(made),
        "settings": digest(run),
        "result": {name: value for name, value in found.items() if name not in LEFT_OUT},
        "losses": losses,
        "client_losses": {c: [float(f"{x:.4g}") for x in curve] for c, curve in clients.items()},
    }
    path.parent.mkdir(exist_ok=True)
    locks = Locks(path.parent / ".lock")  # two processes may share a table
    locks.acquire(path.name, wait=True)
    lines = {**read(path), (figure.cell.name, seed): line}
    write_atomically(path, "".join(f"{json.dumps(line)}\n" for line in lines.values()).encode())
    locks.release(path.name)


def whole_figures(lines: Lines, runs: Runs, failed: Mapping[Cell, Sequence[str]]) -> list[Figure]:
    """Of each cell whose every run has a line or has failed, in the runs' order."""
    figures = []
    for cell in dict.fromkeys(cell for cell, _ in runs):
        asked = [key for key in runs if key[0] == cell]
        of_cell = [lines[key] for key in asked if key in lines]
        why = failed.get(cell, ())
        if len(of_cell) + len(why) == len(asked):
            figures.append(_figure(cell, of_cell, why))
    return figures


def _figure(cell: Cell, lines: Sequence[JsonObject], failed: Sequence[str]) -> Figure:
    return Figure(
        cell,
        results=tuple(line["result"] for line in lines),
        losses=tuple(tuple(line["losses"]) for line in lines),
        failed=tuple(failed),
        client_losses=tuple(
            {int(client): curve for client, curve in line["client_losses"].items()}
            for line in lines
        ),
    )
