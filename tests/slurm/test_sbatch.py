"""The sbatch script, to the letter, and what is refused before there is one."""

import contextlib
import os
import shlex
import sys
from pathlib import Path

import pytest

from cluster.run.options import SlurmOptions
from fl.errors import UserError
from slurm.node_task import NodeTask
from slurm.sbatch import Sbatch, refuse_path, without_allocation
from tests.slurm.fake import calls, fake_command

EVERYTHING = SlurmOptions(
    submit=True,
    partition="gpu",
    nodes=8,
    gpus_per_node=4,
    cpus_per_task=16,
    mem_gb=200,
    time="1-02:00:00",
    account="lab",
    qos="high",
    constraint="h200",
    setup=("module load cuda/12", "export NCCL_DEBUG=WARN"),
    additional=("exclusive", "reservation=my res"),
)
JOB = NodeTask(["--seed=3"], Path("/run"), nodes=1, ray=True)


def test_the_script_is_the_recorded_one() -> None:
    folder = Path("/home/a user/runs/x/slurm")
    golden = (Path(__file__).parent / "golden.sh").read_text()
    expected = golden.replace("FOLDER", str(folder)).replace("PYTHON", shlex.quote(sys.executable))
    assert Sbatch(folder, EVERYTHING).text == expected


def test_what_is_not_asked_for_is_not_written_and_the_jobs_name_and_signal_are_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Sbatch(tmp_path, SlurmOptions()).text
    for name in ("mem", "gres", "partition", "account", "qos", "constraint", "exclusive"):
        assert f"#SBATCH --{name}" not in text
    assert "# setup" not in text
    monkeypatch.setattr("submitit.core.job_environment.JobEnvironment.USR_SIG", "USR1")
    text = Sbatch(tmp_path, SlurmOptions(additional=("job-name=mine",))).text
    assert [line for line in text.splitlines() if "job-name" in line] == ["#SBATCH --job-name=mine"]
    assert "#SBATCH --signal=USR1@90" in text


def test_a_signal_that_does_not_exist_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("submitit.core.job_environment.JobEnvironment.USR_SIG", "FOO")
    with pytest.raises(UserError, match="SUBMITIT_PREEMPT_SIGNAL must name a signal"):
        Sbatch(tmp_path, SlurmOptions())


@pytest.mark.parametrize("name", ["a%j", "a'b", 'a"b', "a\\b", "a\nb", "a\x7fb"])
def test_paths_that_a_script_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot keep logs") as caught:
        refuse_path(Path("/runs") / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a b", "$(touch x)", "a;b", "#a", "ü", "`a`", "*", "-n"])
def test_other_odd_paths_are_only_names(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    line = Sbatch(folder, SlurmOptions()).text.splitlines()[-1]
    assert shlex.split(line)[-1] == str(folder)


def test_a_job_is_sent_once_and_its_id_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'env > "$(dirname "$0")/seen"; echo "Submitted batch job 4711"'
    monkeypatch.setenv("PATH", fake_command(tmp_path / "bin", "sbatch", script)["PATH"])
    for name, value in {
        **{"SLURM_JOB_ID": "9", "SLURM_CONF": "/c", "SBATCH_QOS": "low", "SRUN_CPUS": "3"},
        **{"CUDA_VISIBLE_DEVICES": "3", "TRITON_CACHE_DIR": "/cache"},
        **{"SUBMITIT_PREEMPT_SIGNAL": "USR2"},
    }.items():
        monkeypatch.setenv(name, value)
    assert Sbatch(tmp_path / "x", SlurmOptions()).send([JOB]) == ["4711"]
    assert len(calls(tmp_path / "bin", "sbatch")) == 1
    seen = dict(
        line.partition("=")[::2] for line in (tmp_path / "bin" / "seen").read_text().splitlines()
    )
    kept = {"SLURM_CONF": "/c", "TRITON_CACHE_DIR": "/cache", "SUBMITIT_PREEMPT_SIGNAL": "USR2"}
    assert kept.items() <= seen.items()
    gone = {"SLURM_JOB_ID", "SBATCH_QOS", "SRUN_CPUS", "CUDA_VISIBLE_DEVICES"}
    assert not gone & seen.keys()
    assert os.environ["SLURM_JOB_ID"] == "9"


def test_devices_are_hidden_inside_of_an_allocation_alone_and_come_back_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("PMI_RANK", "3")
    with without_allocation():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
        assert "PMI_RANK" not in os.environ
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    before, inside = dict(os.environ), {}
    with contextlib.suppress(KeyError), without_allocation():
        inside |= os.environ
        raise KeyError
    assert not {"CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"} & inside.keys()
    assert dict(os.environ) == before
