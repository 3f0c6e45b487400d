"""The scalability study's options, and its cells: one run per number of clients and seed."""

import argparse
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.run.command_line import parse
from cluster.run.options import Launch
from cluster.run.prepare import prepare
from cluster.run.steps import silent
from fl.config import RunConfig
from fl.data.catalogue import load
from fl.errors import UserError
from fl.methods.registry import get_method
from fl.report.words import size

CLIENTS = "10,100,1000,10000"
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
class StudyOptions:
    """The study's own options; all others are the launch command's."""

    num_clients: tuple[int, ...]
    seeds: tuple[int, ...]
    samples_per_client: int | None
    output_dir: Path
    launch_arguments: tuple[str, ...]


def parse_study(argv: Sequence[str]) -> StudyOptions:
    """Parses the command line.

    Raises:
        UserError: a malformed list, or a number out of range.
        SystemExit: with 0, after printing help.
    """
    parser = argparse.ArgumentParser(
        prog="python -m cluster.study",
        description="Run a method for growing numbers of clients; see how time, memory and bytes "
        "grow. Finished runs are not repeated.",
        epilog="Every other option is one of python -m cluster.launch, and holds for all runs.",
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument("--num-clients", default=CLIENTS, help=f"list; default {CLIENTS}")
    parser.add_argument("--seeds", default="0", help="list; default 0")
    parser.add_argument(
        "--samples-per-client",
        help="the same number of samples for each client on average, drawn with replacement where "
        "there are too few; default: all samples, shared by all clients",
    )
    parser.add_argument("--output-dir", default="runs/study", help="default runs/study")
    try:
        own, rest = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from None
    if [] in vars(own).values():  # argparse makes that of --
        raise UserError("-- is no value of an option")
    each = own.samples_per_client
    return StudyOptions(
        num_clients=_numbers("num-clients", own.num_clients, least=1),
        seeds=_numbers("seeds", own.seeds, least=0),
        samples_per_client=None if each is None else _number("samples-per-client", each, least=1),
        output_dir=Path(own.output_dir),
        launch_arguments=tuple(rest),
    )


def cells(options: StudyOptions, say: Callable[[str], None] = silent) -> list[StudyRun]:
    """The study's runs, smallest first; each has been prepared once, so that none fails late.

    ``say`` is called with each step as it begins.

    Raises:
        UserError: a setting is wrong, there are too few samples for so many clients, or the
            uploads would not fit on the disk.
    """
    planned = [_cell(options, k, seed) for k in options.num_clients for seed in options.seeds]
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


def _cell(options: StudyOptions, clients: int, seed: int) -> StudyRun:
    name = f"k{clients}-seed{seed}"
    fixed = [f"--num-clients={clients}", f"--seed={seed}", f"--name={name}"]
    fixed.append(f"--output-dir={options.output_dir}")
    launch = parse([*options.launch_arguments, *fixed])
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


def _numbers(option: str, text: str, *, least: int) -> tuple[int, ...]:
    numbers = tuple(_number(option, part, least=least) for part in text.split(","))
    return tuple(sorted(set(numbers)))


def _number(option: str, text: str, *, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise UserError(
            f"--{option} takes whole numbers of at least {least}, with commas between where it "
            f"takes several, such as 10,100; got {text!r}"
        )
    return number
