"""``--wait``: shows a Slurm job's progress, read from its run directory as it is written."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from cluster.hardware.multi_node_ray import tail
from cluster.run.command_line import INTERRUPTED
from cluster.run.progress import progress
from fl.events import Event, parse_events
from fl.federation import Client
from fl.json_files import read_json
from fl.whole_files import no_pipe
from slurm.scheduler import Said, Scheduler, State, read_state

LOOK_S = 1.0
"""Seconds between looks at the run directory; Slurm is asked much less often."""
SETTLE_S = 60.0
"""A shared directory may show the end of a job later than Slurm does."""


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
    """Shows what the job does until it ends; returns the run's exit status.

    Ctrl-C leaves the job running and returns 130.
    """
    metrics = Tail(run_dir / "metrics.jsonl")
    try:
        with progress(members, console) as listener:
            reported: Said | None = None
            ended_at: float | None = None
            while True:
                state = read_state(run_dir)
                for event in metrics.read():
                    listener(event)
                if state and state.job == job and state.status is not None:
                    break
                before, reported = reported, scheduler.state(job)
                if reported and reported != before and not reported.ended:
                    state_and_reason = f"{reported.state.lower()} {reported.reason}"
                    console.print(f"job {job}: {state_and_reason}", markup=False)
                if reported and reported.ended:
                    ended_at = clock() if ended_at is None else ended_at
                    if clock() - ended_at >= SETTLE_S:
                        break
                else:
                    ended_at = None
                sleep(LOOK_S)
    except KeyboardInterrupt:
        console.print(f"job {job} goes on; scancel {job} ends it", highlight=False)
        return INTERRUPTED
    return _conclude(run_dir, job, state, reported, console)


class Tail:
    """Reads the events that are appended to a file from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def read(self) -> Iterator[Event]:
        """The events that are new and complete."""
        try:
            with no_pipe(self._path).open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._offset += len(line)
                    yield from parse_events([line.decode(errors="replace")])
        except FileNotFoundError:
            return


def _conclude(
    run_dir: Path, job: str, state: State | None, reported: Said | None, console: Console
) -> int:
    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    own = state if state and state.job == job else None
    if own and own.status == 0:
        result = read_json(run_dir / "result.json")
        say(f"\naccuracy {result['accuracy']:.4f}\nreport   {run_dir / 'report.html'}")
        return 0
    if own and own.status is not None:
        log = run_dir / "slurm" / f"{job}_0_log.out"
        say(f"job {job}: the run ended with status {own.status}; the end of {log}:\n{tail(log)}")
        return own.status
    how = reported.state.lower() if reported else "unknown"
    if own is None or own.phase == "submitted":
        say(
            f"job {job} ended ({how}) without a word in {run_dir}: was it cancelled before it "
            "began, or is this directory not shared with the nodes?"
        )
    else:
        say(f"job {job} ended ({how}) before the run did; --resume --slurm continues it")
    return 1
