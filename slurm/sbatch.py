"""Submits jobs by sbatch: submitit's executor with a run's options, and errors of one line."""

import io
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from submitit import SlurmExecutor
from submitit.helpers import clean_env

from cluster.hardware.processes import environment
from cluster.run.options import SlurmOptions
from fl.errors import UserError
from fl.json_files import JsonObject
from slurm.node_task import NodeTask
from slurm.submitit_internals import FailedJobError, preemption_name, sbatch_text

REQUEUED_AT_MOST = 100
"""How often a job that reaches its time limit is requeued, at most."""
SIGNAL_BEFORE_S = 90
"""Seconds before the time limit at which the job is signalled."""
OF_ALLOCATION = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "TMPDIR")
PASSED_ON = ("SLURM_CONF", "SUBMITIT_PREEMPT_SIGNAL")


class Sbatch(SlurmExecutor):
    """submitit's executor, which also makes the sbatch text where there is no Slurm."""

    def __init__(self, folder: Path, options: SlurmOptions) -> None:
        refuse_path(folder)
        name = preemption_name()
        if f"SIG{name}" not in signal.Signals.__members__:
            raise UserError(
                f"SUBMITIT_PREEMPT_SIGNAL must name a signal, such as USR2, got {name!r}"
            )
        # -P: a slurm.py in the folder that the job starts in must not be imported in place of ours.
        interpreter = f"{shlex.quote(sys.executable)} -P"
        super().__init__(folder, max_num_timeout=REQUEUED_AT_MOST, python=interpreter)
        self.update_parameters(**parameters(options))

    @classmethod
    def affinity(cls) -> int:
        """Always available: whether sbatch exists is checked when a job is submitted."""
        return 1

    @property
    def text(self) -> str:
        """The exact sbatch script."""
        return sbatch_text(self)

    def send(self, jobs: Sequence[NodeTask]) -> list[str]:
        """Submits the jobs, several as one array, and returns their ids.

        Raises:
            UserError: sbatch refuses.
        """
        # submitit prints sbatch's errors on stderr too; the UserError has them.
        with without_allocation(), redirect_stderr(io.StringIO()):
            try:
                with self.batch():
                    submitted = [self.submit(job) for job in jobs]
                return [job.job_id for job in submitted]
            except FailedJobError as error:
                raise UserError(f"sbatch refused: {_reason(error)}") from error


def parameters(options: SlurmOptions) -> JsonObject:
    """The options by submitit's names."""
    further = options.flags
    asked = {
        "job_name": further.pop("job-name", "onefold"),
        "partition": options.partition,
        "nodes": options.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": options.cpus_per_task,
        # Unlike gpus-per-node, every select plugin supports it.
        "gres": f"gpu:{options.gpus_per_node}" if options.gpus_per_node else None,
        "mem": f"{round(options.mem_gb * 1024)}MB" if options.mem_gb else None,
        "time": options.minutes,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "array_parallelism": options.array_parallelism,
        "setup": list(options.setup) or None,
        "signal_delay_s": SIGNAL_BEFORE_S,
        "stderr_to_stdout": True,
        # A run survives the loss of a node; requeue lets it continue after preemption.
        "additional_parameters": {"no-kill": True, "requeue": True, **further},
        # Since Slurm 22.05 srun does not inherit sbatch's cores per task.
        "srun_args": ["--no-kill", f"--cpus-per-task={options.cpus_per_task}"],
    }
    return {name: value for name, value in asked.items() if value is not None}


def refuse_path(path: Path) -> None:
    """Raises `UserError` for a path with a character that Slurm or submitit would read as something
    else; spaces are fine."""
    found = re.search(r"[%\\'\"\x00-\x1f\x7f]", str(path.absolute()))
    if found:
        raise UserError(
            f"Slurm cannot keep logs in {str(path.absolute())!r}: {found[0]!r} has a meaning of "
            "its own there; choose another --output-dir or --name"
        )


def require_sbatch() -> None:
    """Raises `UserError` where there is no Slurm: sbatch is not on the PATH."""
    if not shutil.which("sbatch"):
        raise UserError("sbatch is not on the PATH: --slurm needs a machine that can submit jobs")


@contextmanager
def without_allocation() -> Iterator[None]:
    """Hides the allocation this process may itself be in, since a job inherits its environment;
    in which Python also finds Onefold where it is not installed."""
    before = dict(os.environ)
    of_node = OF_ALLOCATION if "SLURM_JOB_ID" in before else ()
    try:
        with clean_env([*of_node, *(name for name in before if name.startswith("PMI"))]):
            os.environ |= {name: before[name] for name in PASSED_ON if name in before}
            os.environ["PYTHONPATH"] = environment().get("PYTHONPATH", "")
            yield
    finally:
        os.environ.clear()
        os.environ |= before


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "sbatch: " in line]
    text = " ".join(lines) or " ".join(str(error).split())
    return text.replace("sbatch: error: ", "")[:300]
