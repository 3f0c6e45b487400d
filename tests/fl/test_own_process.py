"""A command in a process of its own, with an environment that would stop them."""

import os
import subprocess
import sys

from tests.fl.report.conftest import MakeRun, make_run

__all__ = ["make_run"]
HOSTILE = {
    "PYTHONIOENCODING": "ascii",
    "MPLBACKEND": "nonsense",
    "SOURCE_DATE_EPOCH": "abc",
    "COLUMNS": "-5",
    "OMP_NUM_THREADS": "abc",
    "TZ": "nonsense",
    "SLURM_JOB_ID": "7",
    "SLURM_CPUS_ON_NODE": "-4",
}


def test_no_variable_stops_a_report(make_run: MakeRun) -> None:
    path = make_run("ä run")
    command, environment = [sys.executable, "-m", "fl.report", str(path)], os.environ | HOSTILE
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (path / "report.html").stat().st_size > 10_000
