"""``python -m slurm.status``: the states of all runs that were sent to Slurm.

A job writes its state to its run's directory, so that Slurm need not be asked for it. Slurm itself
is asked seldom, since a controller serves thousands of users.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fl.command import run_command
from fl.errors import UserError, escaped
from fl.events import ClientEnd, Epoch, Phase, RunEnd, RunStart
from fl.json_files import read_json_if_whole, write_json
from fl.own_process import run_as_command
from fl.report.read import read_events

INTERVAL_S = 30.0
"""Seconds between two calls of squeue, however many jobs there are."""
TIMEOUT_S = 20.0
SQUEUE = ("squeue", "--me", "--states=all", "--noheader", "--array", "--format=%i|%T|%r")
"""All of the user's jobs at once; needs no accounting."""

GONE = "GONE"
"""State of a job that Slurm no longer lists, as happens minutes after a job's end."""
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", GONE),
    *("OUT_OF_MEMORY", "REVOKED", "TIMEOUT"),
}
"""States of jobs that have ended."""


@dataclass(frozen=True, kw_only=True)
class State:
    """How far a job is, as its own processes report it."""

    job: str
    phase: str
    """submitted, starting, running, requeued or ended."""
    status: int | None = None
    """Exit status of the launch, once it has ended."""
    restarts: int = 0


def write_state(run_dir: Path, state: State) -> None:
    """Replaces the state in the run directory."""
    (run_dir / "slurm").mkdir(exist_ok=True)
    write_json(run_dir / "slurm" / "state.json", asdict(state))


def read_state(run_dir: Path) -> State | None:
    """The state in the run directory; None if the run was never submitted, or if it is damaged."""
    found = read_json_if_whole(run_dir / "slurm" / "state.json")
    try:
        return State(**found) if found else None
    except TypeError:  # another program's
        return None


@dataclass(frozen=True, kw_only=True)
class Said:
    """A job's state and its reason, as Slurm reports them."""

    state: str
    reason: str = ""

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self.state in ENDED


def ask_squeue() -> str | None:
    """What squeue prints; None where it is missing, fails or does not answer."""
    try:
        done = subprocess.run(SQUEUE, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


class Scheduler:
    """Asks Slurm for all jobs at once, and answers from the last result in between."""

    def __init__(
        self,
        *,
        ask: Callable[[], str | None] = ask_squeue,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._clock = ask, clock
        self._asked = float("-inf")
        self._said: dict[str, Said] | None = None

    def state(self, job: str) -> Said | None:
        """The job's state at most half a minute ago; None if Slurm has not answered."""
        now = self._clock()
        if now - self._asked >= INTERVAL_S:
            self._asked = now
            answer = self._ask()
            if answer is not None:  # else the last answer stays
                self._said = _parse(answer)
        return None if self._said is None else self._said.get(job, Said(state=GONE))


def _parse(answer: str) -> dict[str, Said]:
    states = {}
    for line in answer.splitlines():
        job, state, reason, *_ = [*line.strip().split("|", 2), "", ""]
        if job:
            states[job] = Said(state=state, reason="" if reason == "None" else reason)
    return states


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table and returns 0, or 2 where there is nothing to read."""
    return run_command(status, "python -m slurm.status", argv)


def status(output_dir: Path = Path("runs")) -> None:
    """Prints the states of all runs that were sent to Slurm.

    Args:
        output_dir: Where runs are kept.
    """
    found = submitted(output_dir)
    if not found:
        raise UserError(f"no run in {output_dir} was sent to Slurm")
    Console(markup=False).print(overview(found, Scheduler()))


def submitted(output_dir: Path) -> dict[Path, State]:
    """The run directories that a job was submitted for, by name."""
    runs = sorted(path.parent.parent for path in output_dir.glob("*/slurm/state.json"))
    states = {run: read_state(run) for run in runs}
    return {run: state for run, state in states.items() if state is not None}


def overview(runs: dict[Path, State], scheduler: Scheduler) -> Table:
    """A row per run."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    for name in ("job", "state", "phase", "clients", "accuracy"):
        table.add_column(name, no_wrap=name != "state")
    for run, state in runs.items():
        own = escaped(run.name), state.job, escaped(describe(state, scheduler))
        table.add_row(*own, *map(escaped, read_progress(run)))
    return table


def describe(state: State, scheduler: Scheduler) -> str:
    """The job's state: as the job reported its end, else as Slurm reports it, if it does."""
    if state.status is not None:
        return "finished" if state.status == 0 else f"failed with status {state.status}"
    reported = scheduler.state(state.job)
    if reported is None:
        return f"{state.phase}, Slurm does not answer"
    if reported.state == GONE:
        return f"gone, was {state.phase}"
    reason = f" ({reported.reason})" if reported.reason else ""
    return f"{reported.state.lower()}{reason}"


def read_progress(run: Path) -> tuple[str, str, str]:
    """By its own events the run's phase, how many clients have finished, those from the store too,
    and the accuracy after the last epoch; a line that is not yet whole is skipped."""
    phase, accuracy = "", ""
    finished: set[int] = set()
    for event in read_events(run / "metrics.jsonl"):
        match event:
            case RunStart():
                phase, accuracy, finished = "", "", set()
            case Phase(status="start"):
                phase = event.phase
            case ClientEnd():
                finished.add(event.client)
            case Epoch():
                accuracy = f"{event.accuracy:.4f}"
            case RunEnd():
                phase, accuracy = "done", f"{event.accuracy:.4f}"
    roles = (read_json_if_whole(run / "partition.json") or {}).get("roles")
    clients = len(roles) if roles and isinstance(roles, list) else "?"
    return phase, f"{len(finished)} of {clients}", accuracy


if __name__ == "__main__":
    run_as_command(main)
