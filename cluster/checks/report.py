"""What was found and what became of the checks: for people on 80 columns, and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Literal

from rich.markup import escape
from rich.table import Table

from cluster.checks.check import Result
from cluster.checks.file_system import FileSystem
from cluster.checks.found import Found
from fl.json_values import JsonObject
from fl.report.words import size

STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim"}
WIDTHS: tuple[tuple[int, Literal["left", "right"]], ...] = (
    (15, "left"),
    (7, "left"),
    (7, "right"),
)
"""Of a result's columns before the finding: name, status and seconds."""


def found_table(found: Found) -> Table:
    """What was found, a line for each kind."""
    table = _two_columns()
    for name, text in _lines(found):
        table.add_row(name, escape(text))
    return table


def heading() -> Table:
    """The heading of the results' lines."""
    return _line("check", "result", "took", "finding")


def result_line(result: Result) -> Table:
    """A check's line, which fits those before it: each is printed as soon as it is there."""
    status = f"[{STYLES[result.status]}]{result.status}[/]"
    took = "" if result.status == "skipped" else f"{result.seconds:.1f} s"
    return _line(result.name, status, took, escape(result.finding))


def is_fit(results: Sequence[Result]) -> bool:
    """Whether no check failed; skipped ones do not count."""
    return all(result.status != "failed" for result in results)


def verdict(results: Sequence[Result]) -> str:
    """The verdict in one line."""
    made = [result for result in results if result.status != "skipped"]
    failed = [result.name for result in made if result.status == "failed"]
    if failed:
        return f"not fit: {len(failed)} of {len(made)} checks failed: {', '.join(failed)}"
    left_out = len(results) - len(made)
    return f"fit: {len(made)} checks passed" + (f", {left_out} skipped" if left_out else "")


def advice_table(results: Sequence[Result]) -> Table:
    """What to do, with the names of the failed checks that it is about."""
    table = _two_columns()
    about: dict[str, list[str]] = {}
    for result in results:
        if result.status == "failed":
            about.setdefault(result.advice, []).append(result.name)
    for advice, names in about.items():
        table.add_row("\n".join(names), escape(advice))
    return table


def as_json(found: Found, results: Sequence[Result], *, ended: bool = True) -> JsonObject:
    """All of it, for programs; what there is of it before the checks have ended."""
    return {
        "fit": is_fit(results) if ended else None,
        "verdict": verdict(results) if ended else "unfinished",
        "checks": [asdict(result) for result in results],
        "found": asdict(found),
    }


def _two_columns() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _line(name: str, status: str, took: str, finding: str) -> Table:
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for width, justify in WIDTHS:
        line.add_column(width=width, justify=justify, no_wrap=True)
    line.add_column(overflow="fold", ratio=1)
    line.add_row(name, status, took, finding)
    return line


def _lines(found: Found) -> Iterator[tuple[str, str]]:
    machine, versions = found.machine, found.versions
    yield "machine", machine.node
    yield "cores", f"{machine.cpus} of {machine.cpu}"
    yield "memory", size(machine.memory_bytes)
    yield "GPUs", _gpus(found)
    yield "Python", versions["python"]
    built = f"for CUDA {found.cuda}" if found.cuda else "built without CUDA"
    yield "PyTorch", f"{versions['torch']} {built}; Triton {versions['triton']}"
    yield "Ray", versions["ray"]
    yield "Slurm", _slurm(found)
    yield "runs", _folder(found.output_dir)
    yield "temporary", _folder(found.temporary)
    for note in found.notes:
        yield "note", note


def _gpus(found: Found) -> str:
    gpus = Counter((gpu.name, gpu.memory_bytes) for gpu in found.machine.gpus)
    named = [f"{count} x {name} ({size(memory)})" for (name, memory), count in gpus.items()]
    driver = f", driver {found.driver}" if found.driver else ""
    return ", ".join(named) + driver if named else "none"


def _slurm(found: Found) -> str:
    slurm = found.slurm
    sbatch = "sbatch is there" if slurm.sbatch else "no sbatch"
    if not slurm.job:
        return f"{sbatch}; in no job"
    where = f"{sbatch}; in job {slurm.job} on {slurm.nodes}"
    if slurm.num_nodes > 1:
        return f"{where}, of which only {slurm.node} is checked"
    return where


def _folder(where: FileSystem) -> str:
    return f"{where.folder}, {size(where.free_bytes)} free ({where.type})"
