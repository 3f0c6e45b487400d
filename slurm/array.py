"""``python -m slurm.array RUNS [launch arguments]``: many runs as one job array.

RUNS is a text file with the arguments of one run per line, as ``cluster.launch`` takes them; the
arguments that follow are added to every run. Empty lines and lines that begin with # are skipped.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cluster.run.command_line import parse
from cluster.run.options import Launch
from cluster.run.prepare import prepare
from cluster.run.run_dir import locate
from cluster.run.steps import print_text
from fl.command import exit_status
from fl.errors import UserError
from fl.own_process import run_as_command
from fl.whole_files import read_text
from slurm.sbatch import Sbatch, require_sbatch
from slurm.status import Scheduler
from slurm.submit import send, under_way


def main(argv: Sequence[str] | None = None) -> int:
    """Submits the runs; returns 0, or 2 for bad input."""
    given = sys.argv[1:] if argv is None else argv
    if not given or given[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if given else 2
    return exit_status(
        lambda: submit_all(read_runs(Path(given[0]), given[1:]), Console(markup=False))
    )


def read_runs(file: Path, common: Sequence[str]) -> list[Launch]:
    """The launches that the file lists.

    Raises:
        UserError: a line is wrong, with its number; or the runs ask for different allocations.
    """
    launches = []
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                launches.append(parse(["--slurm", *common, *shlex.split(line)]))
            except ValueError as error:
                raise UserError(f"{file}, line {number}: {error}") from None
    if not launches:
        raise UserError(f"{file} names no runs")
    if any(launch.slurm != launches[0].slurm for launch in launches):
        raise UserError(f"runs of an array must ask for one allocation; in {file} they differ")
    if any(launch.wait for launch in launches):
        raise UserError("--wait follows one run; python -m slurm.status lists many")
    return launches


def submit_all(launches: Sequence[Launch], console: Console) -> None:
    """Checks every run before it makes the first run directory, then submits all at once.

    It prints the jobs of runs that have one under way, and submits the others.

    Raises:
        UserError: one line, for the first run that cannot be submitted.
    """
    first = launches[0]
    folder = (first.output_dir / ".slurm").absolute()
    plan = Sbatch(folder, first.slurm)
    if first.dry_run:
        plan.parameters["map_count"] = len(launches)
        print_text(f"{len(launches)} runs by this job array:\n\n{plan.text}", console)
        return
    require_sbatch()
    scheduler, free = Scheduler(), []
    for launch in launches:
        if job := under_way(locate(launch), scheduler):
            print_text(job, console)
        else:
            prepare(launch)
            free.append(launch)
    if not free:
        return
    sent = send(free, folder)
    for run_dir, job in sent:
        print_text(f"job {job}  {run_dir}", console)
    array = sent[0][1].partition("_")[0]
    print_text(
        f"logs     {folder}/{array}_*_log.out\n"
        f"watch    python -m slurm.status --output-dir '{first.output_dir.absolute()}'\n"
        f"cancel   scancel {array}",
        console,
    )


if __name__ == "__main__":
    run_as_command(main)
