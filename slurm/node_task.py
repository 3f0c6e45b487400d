"""The task of a Slurm job's nodes: the first starts the Ray cluster and the launch, others join."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from submitit import JobEnvironment
from submitit.helpers import DelayedSubmission

from cluster.hardware.inventory import take_inventory
from cluster.hardware.multi_node_ray import attend, gather
from cluster.hardware.processes import adopt_orphans, end_descendants, python, start
from slurm.status import State, write_state
from slurm.submitit_internals import preemption_name

SIGNALLED_S = 10.0
"""When a signal has ended the launch, this process gets it too, within so many seconds."""


@dataclass(frozen=True)
class NodeTask:
    """A launch inside an allocation. Every start resumes from what is complete on disk."""

    arguments: Sequence[str]
    run_dir: Path
    nodes: int = field(kw_only=True)
    ray: bool = field(kw_only=True)
    module: str = field(kw_only=True, default="cluster.launch")
    """The command to run; it takes --ray-address."""

    def __call__(self) -> None:
        """Runs on each node, as the node's only task."""
        # Ray's processes end at once with their parent, even if it is killed.
        adopt_orphans()
        preempt = _preemption()
        if preempt != signal.SIGTERM:
            signal.signal(signal.SIGTERM, _end)
        # Slurm signals every process of a job, but only this process handles it.
        ignoring = [preempt] if preempt not in (signal.SIGTERM, signal.SIGINT) else []
        try:
            node = JobEnvironment().global_rank
            if node == 0:
                self._lead(ignoring)
            elif self.ray:
                inventory = take_inventory()
                attend(self._meeting(), node=node, inventory=inventory, ignoring=ignoring)
        finally:
            end_descendants()

    def checkpoint(self) -> DelayedSubmission:
        """Stops, since all that is finished is on disk, and returns what to run next time."""
        # Requeueing makes Slurm end this start with signals, which must not interrupt it.
        for one in (_preemption(), signal.SIGTERM):
            signal.signal(one, signal.SIG_IGN)
        meeting = self._meeting()
        meeting.mkdir(mode=0o700, parents=True, exist_ok=True)  # a launch without Ray made none
        (meeting / "over").touch()
        end_descendants()
        self._write("requeued")
        return DelayedSubmission(self)

    def _lead(self, ignoring: Sequence[signal.Signals]) -> None:
        self._write("starting")
        try:
            status = self._run(ignoring)
        except Exception:
            self._write("ended", 1)
            raise
        self._write("ended", status)
        if status:
            raise RuntimeError(f"the run ended with status {status}")

    def _run(self, ignoring: Sequence[signal.Signals]) -> int:
        meeting = self._meeting()
        with (
            gather(meeting, nodes=self.nodes, inventory=take_inventory(), ignoring=ignoring)
            if self.ray
            else nullcontext()
        ) as address:
            self._write("running")
            joining = [f"--ray-address={address}"] if address else []
            interpreter, *module = python(self.module)
            command = [interpreter, "-u", *module, *self.arguments, *joining]
            status = start(command, None, ignoring).wait()
            if status < 0 or status > 128:
                time.sleep(SIGNALLED_S)
            return status

    def _meeting(self) -> Path:
        """A directory of this start of the job alone."""
        return self.run_dir / "slurm" / f"{os.environ['SLURM_JOB_ID']}.{_restarts()}"

    def _write(self, phase: str, status: int | None = None) -> None:
        job = JobEnvironment().job_id
        state = State(job=job, phase=phase, status=status, restarts=_restarts())
        write_state(self.run_dir, state)


def _restarts() -> int:
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def _preemption() -> signal.Signals:
    """The signal before preemption or the time limit, as named by ``SUBMITIT_PREEMPT_SIGNAL``."""
    return signal.Signals[f"SIG{preemption_name()}"]


def _end(signum: int, frame: FrameType | None) -> None:
    """Handles a cancelled job: exits, and on the way ends all processes that were started."""
    signal.signal(signum, signal.SIG_IGN)
    raise SystemExit(128 + signum)
