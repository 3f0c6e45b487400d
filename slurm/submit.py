"""``python -m cluster.launch --slurm``: submits the run as a Slurm job; ``--wait`` follows it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from rich.console import Console

from cluster.hardware.multi_node_ray import tail
from cluster.run.command_line import as_arguments
from cluster.run.options import Launch
from cluster.run.prepare import prepare
from cluster.run.progress import print_dry_run, progress
from cluster.run.run_dir import check_place, claim, delete, locate
from cluster.run.steps import INTERRUPTED, print_text
from fl.errors import UserError
from fl.events import Event, parse_events
from fl.federation import Client
from fl.json_files import read_json
from fl.whole_files import no_pipe
from slurm.node_task import NodeTask
from slurm.sbatch import Sbatch, require_sbatch
from slurm.status import Said, Scheduler, State, read_state, write_state

NOT_FORWARDED = {
    *("config", "preset", "run"),  # all in the run's own config.yaml
    *("output_dir", "name", "data_root"),  # made absolute
    *("dry_run", "resume", "overwrite"),  # handled before the job, which always resumes
    *("slurm", "wait", "ray_address"),
}
LOOK_S = 1.0
"""Seconds between looks at the run directory; Slurm is asked much less often."""
SETTLE_S = 60.0
"""A shared directory may show the end of a job later than Slurm does."""


def submit(launch: Launch, console: Console) -> int:
    """Checks everything, submits, and returns the exit status: of the job with ``--wait``.

    Raises:
        UserError: one line, for any error that can be found before the job starts.
    """
    if not launch.dry_run:
        require_sbatch()
        check_place(launch)
    prepared = prepare(launch)
    run_dir = locate(launch).absolute()
    plan = Sbatch(run_dir / "slurm", launch.slurm)
    if launch.dry_run:
        print_dry_run(launch, prepared, console)
        console.print("\nby this job:\n", highlight=False)
        print_text(plan.text, console)
        return 0
    if job := under_way(run_dir, Scheduler()):  # two would overwrite each other's files
        raise UserError(job)
    ((run_dir, job),) = send([launch])
    print_submitted(run_dir, job, console)
    if not launch.wait:
        return 0
    return follow(run_dir, job, prepared.members, console, Scheduler())


def print_submitted(run_dir: Path, job: str, console: Console) -> None:
    """Prints where the job's results and logs will be, and how to watch and to cancel it."""
    print_text(
        f"job      {job}\n"
        f"results  {run_dir}\n"
        f"logs     {log_of(run_dir, job)}\n"
        f"watch    python -m slurm.status --output-dir '{run_dir.parent}'\n"
        f"cancel   scancel {job}",
        console,
    )


def log_of(run_dir: Path, job: str) -> Path:
    """What the job's first node prints."""
    return run_dir / "slurm" / f"{job}_0_log.out"


def send(launches: Sequence[Launch], folder: Path | None = None) -> list[tuple[Path, str]]:
    """Makes the directories of runs of one allocation and submits their jobs at once, as an array
    if they are several; gives each directory and job. Scripts and logs lie in ``folder``, by
    default in the first run's own directory.

    Raises:
        UserError: a directory is taken, or sbatch refuses; then the new directories are gone again.
    """
    new = [path for path in map(locate, launches) if not path.exists()]
    try:
        run_dirs = [claim(launch).absolute() for launch in launches]
        jobs = [job_of(*pair) for pair in zip(launches, run_dirs, strict=True)]
        ids = Sbatch(folder or run_dirs[0] / "slurm", launches[0].slurm).send(jobs)
    except UserError:
        for path in new:  # nothing has run in them: the next attempt may have their names
            if path.exists():
                delete([path])
        raise
    for run_dir, job in zip(run_dirs, ids, strict=True):
        write_submitted(run_dir, job)
    return list(zip(run_dirs, ids, strict=True))


def job_of(launch: Launch, run_dir: Path) -> NodeTask:
    """The launch inside the allocation, from the run's own configuration file."""
    arguments = [f"--config={run_dir / 'config.yaml'}", *forwarded(launch, run_dir)]
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


def follow(
    run_dir: Path,
    job: str,
    members: tuple[Client, ...],
    console: Console,
    scheduler: Scheduler,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Shows what the job does, read from its run directory, until it ends; returns its run's exit
    status.

    Ctrl-C leaves the job running and returns 130.
    """
    metrics = Tail(run_dir / "metrics.jsonl")
    reported: Said | None = None
    ended_at: float | None = None
    try:
        with progress(members, console) as listener:
            while True:
                state = read_state(run_dir)
                own = state if state and state.job == job else None
                for event in metrics.read():
                    listener(event)
                if own and own.status is not None:
                    break
                before, reported = reported, scheduler.state(job)
                if not (reported and reported.ended):
                    ended_at = None
                    if reported and reported != before:
                        how = f"{reported.state.lower()} {reported.reason}"
                        console.print(f"job {job}: {how}", markup=False)
                elif ended_at is None:
                    ended_at = clock()
                elif clock() - ended_at >= SETTLE_S:
                    break
                sleep(LOOK_S)
    except KeyboardInterrupt:
        console.print(f"job {job} goes on; scancel {job} ends it", highlight=False)
        return INTERRUPTED
    how = reported.state.lower() if reported else "unknown"
    return _conclude(run_dir, job, own, how, console)


class Tail:
    """Reads the events that are appended to a file from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def read(self) -> Iterator[Event]:
        """The events that are new and complete."""
        if not self._path.exists():
            return
        with no_pipe(self._path).open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if line.endswith(b"\n"):
                    self._offset += len(line)
                    yield from parse_events([line.decode(errors="replace")])


def _conclude(run_dir: Path, job: str, own: State | None, how: str, console: Console) -> int:
    """Prints how the job ended, by its own state and by Slurm's; returns the exit status."""
    if own and own.status == 0:
        accuracy = read_json(run_dir / "result.json")["accuracy"]
        text = f"\naccuracy {accuracy:.4f}\nreport   {run_dir / 'report.html'}"
    elif own and own.status is not None:
        log = log_of(run_dir, job)
        text = f"job {job}: the run ended with status {own.status}; the end of {log}:\n{tail(log)}"
    elif own is None or own.phase == "submitted":
        text = (
            f"job {job} ended ({how}) without a word in {run_dir}: was it cancelled before it "
            "began, or is this directory not shared with the nodes?"
        )
    else:
        text = f"job {job} ended ({how}) before the run did; --resume --slurm continues it"
    print_text(text, console)
    return 1 if own is None or own.status is None else own.status
