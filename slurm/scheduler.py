"""Slurm's state of jobs, asked seldom, since a controller serves thousands of users."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fl.json_files import read_json_if_whole, write_json

# The state that a job writes to its run directory, so that no scheduler has to be asked.


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
        done = subprocess.run(
            SQUEUE, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


class Scheduler:
    """Asks Slurm for all jobs at once, and answers from the last result in between."""

    def __init__(
        self,
        *,
        ask: Callable[[], str | None] = ask_squeue,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._clock = ask, clock
        self._asked: float | None = None
        self._said: dict[str, Said] | None = None

    def state(self, job: str) -> Said | None:
        """The job's state at most half a minute ago; None if Slurm has not answered."""
        now = self._clock()
        if self._asked is None or now - self._asked >= INTERVAL_S:
            self._asked = now
            answer = self._ask()
            # If Slurm does not answer, the last answer stays.
            self._said = self._said if answer is None else _parse(answer)
        return None if self._said is None else self._said.get(job, Said(state=GONE))


def _parse(answer: str) -> dict[str, Said]:
    states = {}
    for line in answer.splitlines():
        job, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        if job:
            states[job] = Said(state=state, reason="" if reason == "None" else reason)
    return states
