"""``python -m cluster.launch --slurm``: the same run as a job."""

import shutil
from dataclasses import fields
from pathlib import Path

from rich.console import Console

from cluster.run.command_line import as_arguments
from cluster.run.options import Launch
from cluster.run.plan import print_dry_run
from cluster.run.prepare import prepare
from cluster.run.run_dir import claim, locate
from fl.errors import UserError
from slurm.follow import follow
from slurm.node_task import NodeTask
from slurm.sbatch import Sbatch, refuse_path, require_sbatch
from slurm.scheduler import Scheduler
from slurm.state import State, read_state, write_state

NOT_FORWARDED = {
    *("config", "preset", "run"),  # the run's own config.yaml has all of them
    *("output_dir", "name", "data_root"),  # made absolute
    *("dry_run", "resume", "overwrite"),  # done here; a job always resumes what there is
    *("slurm", "wait", "ray_address"),
}


def submit(launch: Launch, console: Console) -> int:
    """Checks everything, submits, and returns the exit status: of the job with ``--wait``.

    Raises:
        UserError: one line, for whatever can be known to be wrong before the job starts.
    """
    if not launch.dry_run:
        require_sbatch()
    prepared = prepare(launch)
    folder = locate(launch).absolute() / "slurm"
    refuse_path(folder)
    if launch.dry_run:
        print_dry_run(launch, prepared, console)
        console.print("\nby this job:\n", highlight=False)
        print_text(Sbatch(folder, launch.slurm).text, console)
        return 0
    _refuse_second_job(folder.parent)
    new = not folder.parent.exists()
    run_dir = claim(launch).absolute()
    try:
        (job,) = Sbatch(run_dir / "slurm", launch.slurm).send([job_of(launch, run_dir)])
    except UserError:
        if new:  # nothing has run in it: the next attempt may have the name
            shutil.rmtree(run_dir)
        raise
    write_submitted(run_dir, job)
    print_text(
        f"job      {job}\n"
        f"results  {run_dir}\n"
        f"logs     {run_dir / 'slurm' / f'{job}_0_log.out'}\n"
        f"watch    python -m slurm.status --output-dir '{run_dir.parent}'\n"
        f"cancel   scancel {job}",
        console,
    )
    if not launch.wait:
        return 0
    return follow(run_dir, job, prepared.members, console, Scheduler())


def job_of(launch: Launch, run_dir: Path) -> NodeTask:
    """The launch as it is run inside the allocation, from the run's own configuration file."""
    arguments = [
        f"--config={run_dir / 'config.yaml'}",
        *forwarded(launch, run_dir),
    ]
    return NodeTask(arguments, run_dir, nodes=launch.slurm.nodes, ray=launch.runtime == "ray")


def forwarded(launch: Launch, folder: Path) -> list[str]:
    """How to run, as arguments of the command inside the allocation that continues ``folder``."""
    arguments = [
        f"--output-dir={folder.parent}",
        f"--name={folder.name}",
        f"--data-root={launch.data_root.absolute()}",
        "--resume",
    ]
    for field in fields(launch):
        value = getattr(launch, field.name)
        if field.name not in NOT_FORWARDED and value is not None:
            arguments += as_arguments(field.name, value)
    return arguments


def write_submitted(run_dir: Path, job: str) -> None:
    """Notes the job in the run directory, unless the job was quicker."""
    state = read_state(run_dir)
    if state is None or state.job != job:
        write_state(run_dir, State(job=job, phase="submitted"))


def under_way(run_dir: Path, scheduler: Scheduler) -> str | None:
    """What the directory's job does, in words, if it has one that has not ended."""
    state = read_state(run_dir)
    said = scheduler.state(state.job) if state and state.status is None else None
    if state is None or said is None or said.ended:
        return None
    return f"job {state.job} of {run_dir} is {said.state.lower()}; scancel {state.job} ends it"


def _refuse_second_job(run_dir: Path) -> None:
    """Two jobs in one run directory would write over each other."""
    if job := under_way(run_dir, Scheduler()):
        raise UserError(job)


def print_text(text: str, console: Console) -> None:
    """Prints text as it is, without wrapping or colours."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
