"""Internals of submitit that we use, which may change with any release.

- The text of an sbatch script, which submitit otherwise makes only while it submits.
- The error for a refusal by sbatch, in a module that submitit does not export.
- The name of the signal before preemption or a time limit: ``SUBMITIT_PREEMPT_SIGNAL`` at the time
  when submitit was imported.
"""

from submitit import JobEnvironment, SlurmExecutor
from submitit.core.utils import FailedJobError

__all__ = ["TESTED_WITH", "FailedJobError", "preemption_name", "sbatch_text"]

TESTED_WITH = "1.5.4"
"""The version that tests/slurm/test_submitit_internals.py last checked this file with."""


def sbatch_text(executor: SlurmExecutor) -> str:
    """The exact sbatch script of a job of that executor."""
    text: str = executor._make_submission_file_text(executor._submitit_command_str, uid="")
    return text


def preemption_name() -> str:
    """The signal's name without ``SIG``; it may be no valid one."""
    name: str = JobEnvironment.USR_SIG
    return name
