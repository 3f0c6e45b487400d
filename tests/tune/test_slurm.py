"""A sweep as a Slurm job: its trials, and the clients they train, on two nodes of one job."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.slurm.real import missing, real_slurm
from tests.tune.sweeps import CLIENTS, command, trials, workplace

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_sweep_runs_over_an_allocation(tmp_path: Path) -> None:
    asked = ("--slurm.nodes=2", "--slurm.cpus-per-task=2", "--slurm.mem-gb=3", "--slurm.time=20")
    space = {"generator.lr": [5e-3]}
    trials_asked = ("--search=grid", "--num-samples=1", "--max-concurrent=2")
    line = command(tmp_path / "sweep", space, *trials_asked, *asked)
    with real_slurm(tmp_path / "slurm") as slurm:
        environ = {**workplace(), **slurm.environ, "PYTHONPATH": workplace()["PYTHONPATH"]}
        done = subprocess.run(line, capture_output=True, text=True, env=environ, check=False)
        assert done.returncode == 0, done.stderr
        job = done.stdout.split()[1]
        deadline = time.monotonic() + 500
        while slurm.state(job) in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            assert time.monotonic() < deadline
            time.sleep(1)
    log = (tmp_path / "sweep" / "runs" / "sweep" / "slurm" / f"{job}_0_log.out").read_text()
    tried = trials(tmp_path / "sweep")
    assert [t["status"] for t in tried.values()] == ["finished"] * 2, log
    assert sum(t["clients_trained"] for t in tried.values()) == CLIENTS + CLIENTS // 2
    assert "best     trial" in log
