"""``python -m tune.sweep``: a search over a method's settings that trains its clients once."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cluster.run.steps import Steps, ended, loading, stop_with
from fl.errors import UserError
from fl.own_process import run_as_command
from fl.whole_files import refused_by_disk

if TYPE_CHECKING:
    from cluster.run.options import Launch
    from fl.methods.method import Space
    from slurm.node_task import NodeTask
    from tune.options import SweepOptions

# Whatever imports torch is imported where it is used: that takes seconds, and is said first.

NEEDED = """A sweep needs to know what to search, and in which federation.
Nothing was started.

  --space WHAT       server, local, both, or a YAML file of settings and their values
  --num-samples N    how many trials (default: 20)
  --method, --dataset, --config FILE, ...    the federation, as for onefold run

example:  onefold sweep --method fedmho-sd --dataset digits --space server --num-samples 8
all options:  onefold sweep --help      every combination as a table:  onefold sweep --grid
"""


def main(argv: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Runs the command and returns its exit status: 0, 1 a run failed, 2 bad input, 130 Ctrl-C.

    ``own_process``: whether the process is the command's own, and has computed nothing before.
    """
    console, arguments = Console(markup=False), sys.argv[1:] if argv is None else argv
    if not arguments:
        print(NEEDED, end="", file=sys.stderr)
        return 2
    with loading(arguments):
        from cluster.run.prepare import prepare
        from cluster.run.progress import print_plan
        from cluster.run.runtime import EarlyRay
        from tune.folder import claimed_sweep, named
        from tune.options import check_space, parse_sweep, read_space
        from tune.outcome import print_summary, write_report, write_sweep
        from tune.trials import default_run
    with ExitStack() as held:
        try:
            with refused_by_disk():
                options, launch = parse_sweep(arguments)
                launch = named(options, launch)
                space = read_space(options.space, launch.run.method)
                check_space(space, options, launch)
                early = held.enter_context(EarlyRay(wanted=launch.starts_ray, fork=own_process))
                with Steps(console) as say:
                    prepared = prepare(default_run(launch, options.validation), say=say)
            if launch.dry_run:
                for name, distribution in space.items():
                    console.print(f"{name}: {distribution}", highlight=False)
                print_plan(prepared, console)
                return 0
            if launch.slurm.submit:
                return _submit(options, launch, space, console)
            folder = held.enter_context(claimed_sweep(options, launch, space))
            with Steps(console) as say:
                say("loading Ray Tune")  # before a thread that starts Ray could meet half of it
                from tune.tuning import search
            early.begin(prepared.inventory)  # late: a sweep whose name is taken needs none
        except UserError as error:
            return stop_with(error)

        def run() -> None:
            result = search(options, launch, space, prepared, folder, console, early)
            write_sweep(result, folder)
            write_report(result, folder)
            print_summary(result, folder, console)

        return ended(run, f"--resume goes on in {folder}")


def _submit(options: "SweepOptions", launch: "Launch", space: "Space", console: Console) -> int:
    """Submits the sweep and returns the exit status; raises `UserError`, of one line, for any error
    that can be found before the job starts."""
    from slurm.sbatch import Sbatch, require_sbatch
    from slurm.submit import print_submitted, write_submitted
    from tune.folder import claimed_sweep

    if launch.wait:
        raise UserError(
            "--wait is for a single run's job; a sweep's job reports its progress in its log"
        )
    require_sbatch()
    sbatch = Sbatch(launch.output_dir / str(launch.name) / "slurm", launch.slurm)
    with claimed_sweep(options, launch, space) as folder:  # until the job has it
        task = job_of(options, launch, folder)
    (job,) = sbatch.send([task])
    write_submitted(folder, job)
    print_submitted(folder, job, console)
    return 0


def job_of(options: "SweepOptions", launch: "Launch", folder: Path) -> "NodeTask":
    """The sweep inside the allocation, where each start of the job resumes it."""
    from cluster.run.command_line import as_arguments
    from slurm.node_task import NodeTask
    from slurm.submit import forwarded

    own = asdict(options)
    if Path(options.space).suffix:
        own["space"] = str(Path(options.space).absolute())
    arguments = [a for n, value in own.items() if value is not None for a in as_arguments(n, value)]
    arguments += [f"--config={folder / 'default.yaml'}", *forwarded(launch, folder)]
    return NodeTask(arguments, folder, nodes=launch.slurm.nodes, ray=True, module="tune.sweep")


if __name__ == "__main__":
    run_as_command(lambda: main(own_process=True), goes_on=True)
