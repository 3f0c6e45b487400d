"""A scalability study: its options, and one run per number of clients and seed.

Each runs in a process of its own: its time, memory and bytes are measured.
"""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console

from cluster.run.command_line import parse, parse_record
from cluster.run.options import Launch
from cluster.run.prepare import Prepared, prepare
from cluster.run.run_dir import check_place, claimed, differences, existing, locate
from cluster.run.runtime import EarlyRay
from cluster.run.steps import Steps
from cluster.studies.cells import numbers
from fl.bounds import Count, Settings
from fl.config import RunConfig
from fl.data.catalogue import load
from fl.errors import UserError
from fl.json_files import JsonObject, read_json, write_json
from fl.methods.registry import get_method
from fl.process import status_bytes
from fl.report.read import client_ends, read_events
from fl.report.words import size

FILE_BYTES = 4096 * 3
"""Bytes of an update beside its tensors: a header, a checksum's file and a line of events."""
EVERY_S = 0.5
"""Seconds between looks at the processes' peaks, which the kernel records while they live."""
FIGURES = "study.json"


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of the study."""

    launch: Launch
    drawn: int | None
    """Training samples drawn with replacement; None where there are enough to cut."""

    @property
    def run_dir(self) -> Path:
        """The run's directory."""
        return locate(self.launch)


@dataclass(frozen=True, kw_only=True)
class StudyOptions(Settings):
    """Run a method for growing numbers of clients; see how time, memory and bytes grow.

    Finished runs are not repeated. Every option of python -m cluster.launch can be given too, and
    holds for all runs.
    """

    num_clients: str = "10,100,1000,10000"
    """Numbers of clients, with commas between."""
    seeds: str = "0"
    """Seeds of the runs, with commas between."""
    samples_per_client: Count | None = None
    """The same number of samples for each client on average, drawn with replacement where there are
    too few. Default: all samples, shared by all clients."""
    output_dir: Path = Path("runs/study")
    """Directory of the runs and of the study's figures."""

    def check_further(self) -> None:
        """Refuses what is no number."""
        numbers("num_clients", self.num_clients, least=1)
        numbers("seeds", self.seeds)


def parse_study(argv: Sequence[str]) -> tuple[StudyOptions, list[str]]:
    """The study's own options, and the launch's arguments for all its runs; raises as
    :func:`cluster.run.command_line.parse`."""
    options, rest = parse_record(
        StudyOptions, argv, "python -m cluster.study", return_unknown_args=True
    )
    return options, rest


def cells(
    options: StudyOptions, launch_arguments: Sequence[str], say: Callable[[str], None] = print
) -> list[StudyRun]:
    """The study's runs, smallest first; each has been prepared once, so that none fails late.

    ``say`` is called with each step as it begins.

    Raises:
        UserError: a setting is wrong or another than in a run that is there, there are too few
            samples for so many clients, or the uploads would not fit on the disk.
    """
    planned = [
        _cell(options, launch_arguments, clients, seed)
        for clients in sorted(numbers("num_clients", options.num_clients, least=1))
        for seed in sorted(numbers("seeds", options.seeds))
    ]
    launches = [cell.launch for cell in planned]
    if left := [launch for launch in launches if not (locate(launch) / "result.json").exists()]:
        _check_disk(left)
    for cell in planned:
        say(f"preparing {cell.run_dir.name}")
        _refuse_other(cell, prepare(cell.launch, drawn=cell.drawn))
    return planned


def _refuse_other(cell: StudyRun, prepared: Prepared) -> None:
    """Refuses a cell that was begun with other settings or, where they are drawn, other samples."""
    cut = cell.run_dir / "partition.json"
    if not cut.exists():
        return
    check_place(cell.launch)
    if read_json(cut)["hash"] != prepared.partition.digest:
        raise UserError(f"{cell.run_dir} was run with another --samples-per-client")


def upload_bytes(run: RunConfig[Any]) -> int:
    """About how many bytes the clients' updates take on the disk."""
    assignments = get_method(run.method).assign(run.options, run.num_clients, run.run_spec)
    trainings = Counter(assignment.training for assignment in assignments)
    return sum(
        count * (t.upload_bytes(run.run_spec) + FILE_BYTES) for t, count in trainings.items()
    )


def _check_disk(unfinished: Sequence[Launch]) -> None:
    needed = sum(upload_bytes(launch.run) for launch in unfinished)
    directory = unfinished[0].output_dir
    free = shutil.disk_usage(existing(directory)).free
    if needed > free:
        most = max(launch.run.num_clients for launch in unfinished)
        raise UserError(
            f"the uploads of up to {most} clients need about {size(needed)} in {directory}, where "
            f"{size(free)} are free: use fewer clients, fewer seeds or another --output-dir"
        )


def _cell(
    options: StudyOptions, launch_arguments: Sequence[str], clients: int, seed: int
) -> StudyRun:
    fixed = [f"--num-clients={clients}", f"--seed={seed}", f"--name=k{clients}-seed{seed}"]
    if "--overwrite" in launch_arguments:
        raise UserError("a study always resumes; to start again choose another --output-dir")
    launch = parse([*launch_arguments, *fixed, f"--output-dir={options.output_dir}", "--resume"])
    launch.refuse_smoke()
    if launch.slurm.submit:
        raise UserError("a study cannot use --slurm; onefold run and suite can")
    if options.samples_per_client is None:
        return StudyRun(launch=launch, drawn=None)
    run, wanted = launch.run, clients * options.samples_per_client
    if run.data.max_train is not None:
        raise UserError("--samples-per-client and --data.max-train exclude each other")
    available = len(load(run.dataset, launch.data_root, max_train=None, max_test=1).train.labels)
    if wanted > available:
        return StudyRun(launch=launch, drawn=wanted)
    run = replace(run, data=replace(run.data, max_train=wanted))
    return StudyRun(launch=replace(launch, run=run), drawn=None)


def run_cell(cell: StudyRun) -> None:
    """Runs the cell in this process, its own, and writes its figures to the run's directory."""
    from cluster.run.runner import execute

    console = Console(markup=False)
    with ExitStack() as held:
        with peaks() as peak:
            early = held.enter_context(EarlyRay(wanted=cell.launch.starts_ray, fork=True))
            with Steps(console) as say:
                prepared = prepare(cell.launch, drawn=cell.drawn, say=say, checked=early.begin)
            run_dir = held.enter_context(claimed(cell.launch))
            result = execute(cell.launch, prepared, run_dir, console, early=early)
        write_json(run_dir / FIGURES, figures(cell, result, peak))


def figures(cell: StudyRun, result: JsonObject, peak: "Peaks") -> JsonObject:
    """A finished run's figures, as the study's table and pictures need them."""
    counts = read_json(cell.run_dir / "partition.json")["counts"]
    local = result["seconds"]["local"]
    by_client = client_ends(read_events(cell.run_dir / "metrics.jsonl")).values()
    reused = [end.reused for ends in by_client for end in ends]
    trained = reused.count(False)
    names = ("clients", "seed", "seconds", "bytes_up", "bytes_down", "accuracy", "start_accuracy")
    return {
        **{name: result[name] for name in names},
        "samples": sum(map(sum, counts)),
        "drawn_with_replacement": cell.drawn is not None,
        "trained": trained,
        "trainings": len(reused),
        "clients_per_second": trained / local if local else 0.0,
        "driver_peak_bytes": peak.driver,
        "workers": peak.workers,
        "workers_peak_bytes": peak.workers_bytes,
        "device_peak_bytes": _device_peak(result["placements"]),
    }


def is_finished(cell: StudyRun) -> bool:
    """Whether the cell ran already, as far as is asked for now: it may go on to more rounds."""
    there = (cell.run_dir / FIGURES).exists()
    return there and not differences(cell.run_dir / "config.yaml", cell.launch.run)


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
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if " ".join(child.cmdline()).startswith("ray::ClientActor"):
                yield child.pid


def _peak(process: int | str) -> int:
    """Most resident bytes so far; 0 for one that has ended. (psutil gives what is resident now.)"""
    with suppress(OSError):
        return status_bytes("VmHWM", process)
    return 0


def _device_peak(placements: list[JsonObject]) -> int | None:
    """Most memory that a client or the server took on a GPU; None without one."""
    if not torch.cuda.is_available():
        return None
    by_clients = max((p["peak_bytes"] or 0 for p in placements), default=0)
    return max(by_clients, torch.cuda.max_memory_reserved())
