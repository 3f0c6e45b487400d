"""The scalability study's options, and its cells: one run per number of clients and seed."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from cluster.run.command_line import parse, parse_record
from cluster.run.options import Launch
from cluster.run.prepare import prepare
from cluster.run.steps import silent
from cluster.studies.suite_options import numbers
from fl.bounds import Count, Settings
from fl.config import RunConfig
from fl.data.catalogue import load
from fl.errors import UserError
from fl.methods.registry import get_method
from fl.report.words import size

PROG = "python -m cluster.study"
FILE_BYTES = 4096 * 3
"""Bytes of an update beside its tensors: a header, a checksum's file and a line of events."""


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of the study."""

    launch: Launch
    drawn: int | None
    """Training samples drawn with replacement; None where there are enough to cut."""

    @property
    def run_dir(self) -> Path:
        """The run's directory."""
        return self.launch.output_dir / str(self.launch.name)


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
    """The study's own options, and the launch's arguments for all its runs.

    Raises:
        UserError: one line, for whatever is wrong.
        SystemExit: with 0, after printing help.
    """
    own = [field.name for field in fields(StudyOptions)]
    options, rest = parse_record(StudyOptions, argv, own, PROG, return_unknown_args=True)
    return options, rest


def cells(
    options: StudyOptions, launch_arguments: Sequence[str], say: Callable[[str], None] = silent
) -> list[StudyRun]:
    """The study's runs, smallest first; each has been prepared once, so that none fails late.

    ``say`` is called with each step as it begins.

    Raises:
        UserError: a setting is wrong, there are too few samples for so many clients, or the
            uploads would not fit on the disk.
    """
    planned = [
        _cell(options, launch_arguments, clients, seed)
        for clients in sorted(numbers("num_clients", options.num_clients, least=1))
        for seed in sorted(numbers("seeds", options.seeds))
    ]
    _check_disk([cell for cell in planned if not (cell.run_dir / "result.json").exists()])
    for cell in planned:
        say(f"preparing {cell.run_dir.name}")
        prepare(cell.launch, drawn=cell.drawn)
    return planned


def upload_bytes(run: RunConfig[Any]) -> int:
    """About how many bytes the clients' updates take on the disk."""
    assignments = get_method(run.method).assign(run.options, run.num_clients, run.run_spec)
    trainings = Counter(assignment.training for assignment in assignments)
    return sum(
        count * (t.upload_bytes(run.run_spec) + FILE_BYTES) for t, count in trainings.items()
    )


def _check_disk(unfinished: Sequence[StudyRun]) -> None:
    if not unfinished:
        return
    needed = sum(upload_bytes(cell.launch.run) for cell in unfinished)
    directory = unfinished[0].launch.output_dir
    there = directory.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if needed > free:
        most = max(cell.launch.run.num_clients for cell in unfinished)
        raise UserError(
            f"the uploads of up to {most} clients need about {size(needed)} in {directory}, where "
            f"{size(free)} are free: use fewer clients, fewer seeds or another --output-dir"
        )


def _cell(
    options: StudyOptions, launch_arguments: Sequence[str], clients: int, seed: int
) -> StudyRun:
    name = f"k{clients}-seed{seed}"
    fixed = [f"--num-clients={clients}", f"--seed={seed}", f"--name={name}"]
    fixed.append(f"--output-dir={options.output_dir}")
    launch = parse([*launch_arguments, *fixed])
    launch.refuse_smoke()
    if (launch.output_dir / name / "config.yaml").exists():
        launch = replace(launch, resume=True)
    each = options.samples_per_client
    if each is None:
        return StudyRun(launch=launch, drawn=None)
    return _with_samples(launch, clients * each)


def _with_samples(launch: Launch, wanted: int) -> StudyRun:
    """The run with so many samples in all: a subset, or drawn with replacement."""
    run = launch.run
    available = len(load(run.dataset, launch.data_root, max_train=None, max_test=1).train.labels)
    if run.data.max_train is not None:
        raise UserError("--samples-per-client and --data.max-train exclude each other")
    if wanted > available:
        return StudyRun(launch=launch, drawn=wanted)
    data = replace(run.data, max_train=wanted)
    return StudyRun(launch=replace(launch, run=replace(run, data=data)), drawn=None)
