"""One run of a scalability study, in a process of its own: its time, memory and bytes."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from cluster.run.early_ray import EarlyRay
from cluster.run.prepare import prepare
from cluster.run.run_dir import check_place, claimed
from cluster.run.steps import Steps
from cluster.studies.study_options import StudyRun
from fl.errors import UserError
from fl.json_files import JsonObject, read_json, write_json

PROC = Path("/proc")
EVERY_S = 0.5
"""Seconds between looks at the processes' peaks, which the kernel records while they live."""
FIGURES = "study.json"


def run_cell(cell: StudyRun) -> None:
    """Runs the cell in this process, its own, and writes its figures to the run's directory."""
    from cluster.run.runner import execute

    console = Console(markup=False)
    with ExitStack() as held:
        with peaks() as peak:
            early = held.enter_context(EarlyRay(cell.launch, fork=True))
            with Steps(console) as say:
                prepared = prepare(cell.launch, drawn=cell.drawn, say=say, checked=early.begin)
            run_dir = held.enter_context(claimed(cell.launch))
            result = execute(cell.launch, prepared, run_dir, console, early=early)
        write_json(run_dir / FIGURES, figures(cell, result, peak))


def figures(cell: StudyRun, result: JsonObject, peak: "Peaks") -> JsonObject:
    """A finished run's figures, as the study's table and pictures need them."""
    placements = result["placements"]
    local = result["seconds"]["local"]
    trained = sum(not entry["reused"] for entry in placements)
    return {
        "clients": result["clients"],
        "seed": result["seed"],
        "samples": sum(map(sum, _counts(cell.run_dir))),
        "drawn_with_replacement": cell.drawn is not None,
        "trained": trained,
        "seconds": result["seconds"],
        "clients_per_second": trained / local if local else 0.0,
        "driver_peak_bytes": peak.driver,
        "workers": peak.workers,
        "workers_peak_bytes": peak.workers_bytes,
        "device_peak_bytes": _device_peak(placements),
        "bytes_up": result["bytes_up"],
        "bytes_down": result["bytes_down"],
        "accuracy": result["accuracy"],
        "start_accuracy": result["start_accuracy"],
    }


def finished(cell: StudyRun) -> JsonObject | None:
    """The figures of a cell that ran already, with the same settings; None if it has not.

    Raises:
        UserError: the cell's directory holds a run with other settings.
    """
    path = cell.run_dir / FIGURES
    if not path.exists():
        return None
    check_place(replace(cell.launch, resume=True))  # refuses another configuration
    found = read_json(path)
    if found["drawn_with_replacement"] != (cell.drawn is not None):
        raise UserError(f"{cell.run_dir} was run with another --samples-per-client")
    return found


@dataclass
class Peaks:
    """Most resident bytes of the driver, and of the worker processes that lived at once."""

    driver: int = 0
    workers: int = 0
    workers_bytes: int = 0


@contextmanager
def peaks() -> Iterator[Peaks]:
    """Watches this process and the client processes below it."""
    found, done = Peaks(), threading.Event()

    def watch() -> None:
        while not done.wait(EVERY_S):
            # The driver's too, since clients that train in the driver reset the kernel's value.
            found.driver = max(found.driver, _peak("self"))
            own = [_peak(pid) for pid in _clients_processes()]
            found.workers = max(found.workers, len(own))
            found.workers_bytes = max(found.workers_bytes, sum(own))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
        found.driver = max(found.driver, _peak("self"))


def _clients_processes() -> Iterator[int]:
    """Ray's actors below this process; Ray names each after what it runs."""
    parents = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            found = re.search(r"^PPid:\s+(\d+)", _status(entry.name), re.MULTILINE)
            parents[int(entry.name)] = int(found.group(1)) if found else 0
    below = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= grown
    for pid in below:
        try:
            command = (PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if command.startswith(b"ray::ClientActor"):
            yield pid


def _peak(process: int | str) -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB", _status(str(process)), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def _status(process: str) -> str:
    try:
        return (PROC / process / "status").read_text()
    except OSError:  # it has ended
        return ""


def _device_peak(placements: list[JsonObject]) -> int | None:
    """Most memory that a client or the server took on a GPU; None without one."""
    if not torch.cuda.is_available():
        return None
    by_clients = max((p["peak_bytes"] or 0 for p in placements), default=0)
    return max(by_clients, torch.cuda.max_memory_reserved())


def _counts(run_dir: Path) -> list[list[int]]:
    counts: list[list[int]] = read_json(run_dir / "partition.json")["counts"]
    return counts
