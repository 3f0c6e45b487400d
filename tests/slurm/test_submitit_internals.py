"""What we use of submitit's internals: the script that it sends, its refusal, its signal."""

import subprocess
import sys
from pathlib import Path

import pytest
from submitit import SlurmExecutor

from cluster.run.options import SlurmOptions
from slurm.sbatch import Sbatch
from slurm.submitit_internals import TESTED_WITH, FailedJobError, preemption_name, sbatch_text
from tests.contracts import contract
from tests.slurm.fake import fake_command

TEXT = "SlurmExecutor._make_submission_file_text or ._submitit_command_str"
SIGNAL = "from slurm.submitit_internals import preemption_name as name; print(name())"


def test_the_text_is_what_sbatch_is_sent(commands: Path, tmp_path: Path) -> None:
    executor = Sbatch(tmp_path / "jobs", SlurmOptions(nodes=2, mem_gb=3))
    with contract("submitit", TEXT, TESTED_WITH):
        executor.submit(print)
        sent = (commands / "sent").read_text()
        assert sbatch_text(executor) == sent
        assert f"#SBATCH --signal={preemption_name()}@" in sent


def test_a_refusal_is_the_error_that_we_expect(commands: Path, tmp_path: Path) -> None:
    fake_command(commands, "sbatch", "echo 'sbatch: error: no such partition' >&2; exit 1")
    with (
        contract("submitit", "submitit.core.utils.FailedJobError", TESTED_WITH),
        pytest.raises(FailedJobError, match="sbatch: error: no such partition"),
    ):
        SlurmExecutor(tmp_path / "jobs").submit(print)


@pytest.mark.process
def test_the_environment_names_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    with contract("submitit", "JobEnvironment.USR_SIG", TESTED_WITH):
        for value, expected in ((None, "USR2"), ("TERM", "TERM")):
            monkeypatch.delenv("SUBMITIT_PREEMPT_SIGNAL", raising=False)
            if value:
                monkeypatch.setenv("SUBMITIT_PREEMPT_SIGNAL", value)
            command = [sys.executable, "-c", SIGNAL]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            assert done.stdout.strip() == expected
