"""``python -m cluster.launch --slurm``: submits the run as a Slurm job."""

from dataclasses import fields
from pathlib import Path

from rich.console import Console

from cluster.run.command_line import as_arguments
from cluster.run.options import Launch
from cluster.run.plan import print_dry_run
from cluster.run.prepare import prepare
from cluster.run.run_dir import check_place, claim, delete, locate
from fl.errors import UserError
from slurm.follow import follow
from slurm.node_task import NodeTask
from slurm.sbatch import Sbatch, refuse_path, require_sbatch
from slurm.scheduler import Scheduler, State, read_state, write_state

NOT_FORWARDED = {
    *("config", "preset", "run"),  # all in the run's own config.yaml
    *("output_dir", "name", "data_root"),  # made absolute
    *("dry_run", "resume", "overwrite"),  # handled before the job, which always resumes
    *("slurm", "wait", "ray_address"),
}


def submit(launch: Launch, console: Console) -> int:
    """Checks everything, submits, and returns the exit status: of the job with ``--wait``.

    Raises:
        UserError: one line, for any error that can be found before the job starts.
    """
    if not launch.dry_run:
        require_sbatch()
        check_place(launch)
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
        if new:  # nothing has run in it, so the name is free for the next attempt
            delete([run_dir])
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
    """The launch inside the allocation, from the run's own configuration file."""
    arguments = [
        f"--config={run_dir / 'config.yaml'}",
        *forwarded(launch, run_dir),
    ]
    return NodeTask(arguments, run_dir, nodes=launch.slurm.nodes, ray=launch.runtime == "ray")


def forwarded(launch: Launch, folder: Path) -> list[str]:
    """The launch's options as arguments of the command in the allocation, to resume ``folder``."""
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
    """Writes the job to the run directory, unless the job has already done so."""
    state = read_state(run_dir)
    if state is None or state.job != job:
        write_state(run_dir, State(job=job, phase="submitted"))


def under_way(run_dir: Path, scheduler: Scheduler) -> str | None:
    """A line about the directory's job, if it has one that has not ended."""
    state = read_state(run_dir)
    reported = scheduler.state(state.job) if state and state.status is None else None
    if state is None or reported is None or reported.ended:
        return None
    return f"job {state.job} of {run_dir} is {reported.state.lower()}; scancel {state.job} ends it"


def _refuse_second_job(run_dir: Path) -> None:
    """Refuses a second job in one run directory: the two would overwrite each other's files."""
    if job := under_way(run_dir, Scheduler()):
        raise UserError(job)


def print_text(text: str, console: Console) -> None:
    """Prints text as it is, without wrapping or colours."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
