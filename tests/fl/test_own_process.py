"""Commands in processes of their own, with an environment that would stop them."""

import os
import subprocess
import sys
from pathlib import Path

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


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    environment = {**os.environ, **HOSTILE}
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def test_no_variable_stops_a_report(make_run: MakeRun) -> None:
    path = make_run("ä run")
    done = run("-m", "fl.report", str(path), folder=path.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert (path / "report.html").stat().st_size > 10_000


def test_what_is_exported_is_said(make_run: MakeRun) -> None:
    folder = make_run("first").parent
    begin = "import onefold.command, sys; sys.exit(onefold.command.main(sys.argv[1:]))"
    done = run("-c", begin, "export", "--csv", "t.csv", "--output-dir", ".", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("t.csv: 1 run, ")
