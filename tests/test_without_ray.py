"""Where Ray, submitit, pydantic and tensorboardX are missing, all that needs none of them runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.commands import SMALL
from tests.missing import environment

ROOT = Path(__file__).parents[1]


def run(folder: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, env=environment(folder), cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_a_run_in_process_ends_and_one_on_ray_says_what_is_missing(tmp_path: Path) -> None:
    launch = ["-m", "cluster.launch", f"--output-dir={tmp_path}", *SMALL]
    run(tmp_path, *launch, "--runtime=inprocess", "--name=run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["accuracy"] > 0
    refused = run(tmp_path, *launch, "--runtime=ray", status=2)
    assert "Ray is not installed; pip install 'ray[tune]>=2.52'" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.slow
def test_every_benchmark_that_starts_no_cluster_can_be_imported(tmp_path: Path) -> None:
    names = {file.stem for file in (ROOT / "benchmarks").glob("*.py")}
    others = ", ".join(sorted(names - {"placement", "live_placement"}))
    run(tmp_path, "-c", f"import sys; sys.path.insert(0, 'benchmarks'); import {others}")
