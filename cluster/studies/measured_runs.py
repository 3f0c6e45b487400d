"""``docs/runs/``: what the runs behind docs/results.md found, a line of JSON each.

A table of a hundred runs takes longer than a sitting, and on another machine its runs'
directories are missing. A run whose line is there, and of today's code, is not run again.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.studies.cell import Cell
from cluster.studies.comparison import Figure
from cluster.studies.digests import digest_of_cell
from cluster.studies.provenance import Provenance, here_and_now
from cluster.studies.suite_runs import Found, run_all
from fl.errors import UserError
from fl.json_values import JsonObject
from fl.whole_files import no_pipe, write_atomically

LEFT_OUT = ("placements", "confusion")
"""Parts of a result that no table reads, and that are longer than all else."""


@dataclass(frozen=True)
class MeasuredRun:
    """What a run found, of which code, and where."""

    cell: str
    """The cell's name."""
    seed: int
    sources: str
    """The cell's digest when it was run (:func:`cluster.studies.digests.digest_of_cell`)."""
    provenance: Provenance
    result: JsonObject
    """As ``result.json`` holds it, without ``LEFT_OUT``."""
    losses: tuple[float, ...]
    """Of the server's training, by epoch."""


def read(path: Path) -> list[MeasuredRun]:
    """The runs in a file; none where there is no file.

    Raises:
        UserError: a line is no run.
    """
    if not path.exists():
        return []
    lines = no_pipe(path).read_text().splitlines()
    return [_run(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def add(path: Path, run: MeasuredRun) -> None:
    """Writes the run into the file, in the place of an older one of the same cell and seed.

    Raises:
        UserError: a line of the file is no run.
    """
    kept = {(old.cell, old.seed): old for old in read(path)}
    kept[run.cell, run.seed] = run
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, "".join(map(_line, kept.values())).encode())


def figures_of(
    runs: Mapping[tuple[Cell, int], Sequence[str]], path: Path
) -> tuple[list[Figure], list[str]]:
    """Figures of the runs, and lines that say where they come from.

    Runs what the file has not of today's code, and adds each to it as soon as it is finished.

    Args:
        runs: each run's arguments, by cell and seed.
        path: of the file.

    Raises:
        UserError: a run cannot be, or a line of the file is no run.
        ClientFailed: a client failed for good.
    """
    today = {cell.name: digest_of_cell(cell) for cell, _ in runs}
    there = {(run.cell, run.seed, run.sources): run for run in read(path)}
    wanted = {run: there.get((run[0].name, run[1], today[run[0].name])) for run in runs}
    known = {run: Found(old.result, old.losses) for run, old in wanted.items() if old}
    place = here_and_now()

    def keep(cell: Cell, seed: int, run: Found) -> None:
        name = cell.name
        add(path, MeasuredRun(name, seed, today[name], place, run.result, run.losses))

    figures = run_all(runs, known, keep)
    names = {(cell.name, seed) for cell, seed in runs}
    return figures, _places([run for run in read(path) if (run.cell, run.seed) in names])


def _places(runs: Sequence[MeasuredRun]) -> list[str]:
    """How many runs are of which day, commit and machine, a line for each of these."""
    return [
        f"- {number} of {len(runs)} runs: {at.date}, commit {at.commit}; {at.machine}"
        for at, number in Counter(run.provenance for run in runs).items()
    ]


def _line(run: MeasuredRun) -> str:
    result = {name: value for name, value in run.result.items() if name not in LEFT_OUT}
    return f"{json.dumps(asdict(run) | {'result': result})}\n"


def _run(line: str, where: str) -> MeasuredRun:
    try:
        found = json.loads(line)
        losses = tuple(map(float, found.pop("losses")))
        return MeasuredRun(
            **found | {"provenance": Provenance(**found["provenance"]), "losses": losses}
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{where}: this is no run that was measured") from None
