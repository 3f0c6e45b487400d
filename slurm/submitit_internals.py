"""What we use of submitit that submitit does not promise to keep.

- The text of an sbatch script: submitit makes it only while it submits.
- The error of an sbatch that refuses: it is in a module that submitit does not export.
- The name of the signal before preemption or a time limit. ``SUBMITIT_PREEMPT_SIGNAL`` names it,
  but submitit goes by what that was when it was imported.
"""

from submitit import JobEnvironment, SlurmExecutor
from submitit.core.utils import FailedJobError

__all__ = ["TESTED_WITH", "FailedJobError", "preemption_name", "sbatch_text"]

TESTED_WITH = "1.5.4"
"""The submitit that tests/slurm/test_submitit_internals.py last held against this file."""


def sbatch_text(executor: SlurmExecutor) -> str:
    """The sbatch script of a job of that executor, to the letter."""
    text: str = executor._make_submission_file_text(executor._submitit_command_str, uid="")
    return text


def preemption_name() -> str:
    """The signal's name without ``SIG``, if it is one at all."""
    name: str = JobEnvironment.USR_SIG
    return name
