"""``python -m cluster.study``: how time, memory and bytes grow with the number of clients."""

import multiprocessing
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from cluster.run.steps import Steps, loading
from cluster.suite import ended
from fl.errors import UserError
from fl.json_files import JsonObject
from fl.own_process import prepare_process, run_as_command, say_interrupted
from fl.whole_files import refused_by_disk

if TYPE_CHECKING:
    from cluster.studies.study_runs import StudyOptions, StudyRun

# Whatever imports torch is imported where it is used: that takes seconds, and is said first.

NEEDED = """A study needs to be told which numbers of clients to try, and what method.
Nothing was started.

  --num-clients N,N,...    a run for each (default: 10,100,1000,10000)
  --seeds N,N,...          and each seed (default: 0)
  --method, --dataset, --config FILE, ...    of all runs, as for onefold run

example:  onefold study --method fedmho-sd --dataset digits --num-clients 5,10,20
all options:  onefold study --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, 1 a run failed, 2 bad input, 130 Ctrl-C."""
    console, arguments = Console(markup=False), sys.argv[1:] if argv is None else argv
    if not arguments:
        print(NEEDED, end="", file=sys.stderr)
        return 2
    with loading(arguments):
        from cluster.run.command_line import stop_with
        from cluster.studies.study_runs import cells, finished, parse_study
    try:
        options, launch_arguments = parse_study(arguments)
        if sys.platform != "linux":
            raise UserError(
                "a study measures memory by what Linux tells of processes: it needs Linux"
            )
        with refused_by_disk(), Steps(console) as say:
            planned = cells(options, launch_arguments, say)
        if any(cell.launch.slurm.submit for cell in planned):
            raise UserError(
                "a study runs where it is started: --slurm is for onefold run and suite"
            )
        earlier = [finished(cell) for cell in planned]
    except UserError as error:
        return stop_with(error)
    if any(cell.launch.dry_run for cell in planned):
        for cell, figures in zip(planned, earlier, strict=True):
            print(f"{cell.run_dir}  {'finished' if figures else 'to be run'}")
        return 0
    found: list[JsonObject] = []
    for cell, figures in zip(planned, earlier, strict=True):
        if figures is None:
            console.rule(cell.run_dir.name)
            console.print("loading torch in a process of its own …", highlight=False)
            if status := _run(cell):
                hint = f"onefold: {cell.run_dir} is not finished; the same command continues it"
                print(hint, file=sys.stderr)
                return status
            figures = finished(cell)
        if figures:
            found.append(figures)
    _write(options, found, console)
    return 0


def _write(options: "StudyOptions", found: list[JsonObject], console: Console) -> None:
    """Writes the figures of all runs, draws them, and prints their tables."""
    from cluster.studies.study_report import pictures, slopes, tables
    from fl.json_files import write_json

    options.output_dir.mkdir(parents=True, exist_ok=True)
    write_json(options.output_dir / "study.json", {"cells": found, "slopes": slopes(found)})
    for name, picture in pictures(found).items():
        (options.output_dir / f"{name}.png").write_bytes(picture)
    for shown in tables(found):
        console.print(shown)
    console.print(f"figures and pictures in {options.output_dir}", highlight=False)


def _run(cell: "StudyRun") -> int:
    """Runs the cell in a process of its own, to measure its memory alone; returns exit status."""
    from cluster.run.command_line import INTERRUPTED

    process = multiprocessing.get_context("spawn").Process(target=_in_process, args=(cell,))
    process.start()
    try:
        process.join()
    except KeyboardInterrupt:
        say_interrupted()
        process.terminate()  # the terminal has interrupted the cell too, but no other signal has
        process.join()
        return INTERRUPTED
    return process.exitcode or 0


def _in_process(cell: "StudyRun") -> None:
    from cluster.studies.study_runs import run_cell

    prepare_process()
    sys.exit(ended(lambda: run_cell(cell)))


if __name__ == "__main__":
    run_as_command(main, goes_on=True)
