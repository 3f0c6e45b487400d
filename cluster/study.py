"""``python -m cluster.study``: how time, memory and bytes grow with the number of clients."""

import multiprocessing
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from cluster.run.steps import INTERRUPTED, Steps, ended, loading
from fl.errors import UserError
from fl.json_files import read_json
from fl.own_process import prepare_process, run_as_command, say_interrupted
from fl.whole_files import refused_by_disk

if TYPE_CHECKING:
    from cluster.studies.study_runs import StudyOptions, StudyRun

# Whatever imports torch is imported where it is used: that takes seconds, and is said first.

NEEDED = """A study needs to know which numbers of clients to try, and what method.
Nothing was started.

  --num-clients N,N,...    a run for each (default: 10,100,1000,10000)
  --seeds N,N,...          and each seed (default: 0)
  --method, --dataset, --config FILE, ...    of all runs, as for onefold run

example:  onefold study --method fedmho-sd --dataset digits --num-clients 5,10,20
all options:  onefold study --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, 1 a run failed, 2 bad input, 130 Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        print(NEEDED, end="", file=sys.stderr)
        return 2
    with loading(arguments):
        from cluster.studies.study_runs import parse_study
    return ended(lambda: study(*parse_study(arguments)))


def study(options: "StudyOptions", launch_arguments: Sequence[str]) -> int:
    """Runs what is not finished, and writes the figures of all; returns the exit status.

    Raises:
        UserError: a run cannot be, or was run with other settings.
    """
    from cluster.run.run_dir import locked
    from cluster.studies.study_runs import FIGURES, cells, is_finished

    console = Console(markup=False)
    if sys.platform != "linux":
        raise UserError(
            "a study measures memory by what Linux reports of processes: it needs Linux"
        )
    with refused_by_disk(), Steps(console) as say:
        planned, folder = cells(options, launch_arguments, say), options.output_dir
        if planned[0].launch.dry_run:
            for cell in planned:
                print(f"{cell.run_dir}  {'finished' if is_finished(cell) else 'to be run'}")
            return 0
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        for cell in (cell for cell in planned if not is_finished(cell)):
            console.rule(cell.run_dir.name)
            console.print("loading torch in a process of its own …", highlight=False)
            if status := _run(cell):
                hint = f"onefold: {cell.run_dir} is not finished; the same command continues it"
                print(hint, file=sys.stderr)
                return status
        from cluster.studies.study_report import write

        write(folder, [read_json(cell.run_dir / FIGURES) for cell in planned], console)
    return 0


def _run(cell: "StudyRun") -> int:
    """Runs the cell in a process of its own, to measure its memory alone; returns exit status."""
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
    sys.exit(ended(lambda: run_cell(cell), goes_on=""))


if __name__ == "__main__":
    run_as_command(main, goes_on=True)
