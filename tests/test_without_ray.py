"""What a run imports and needs: all that needs no Ray runs without, and costs no import of it."""

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
        command, env=environment(folder), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.mark.ray
def test_a_run_on_ray_says_what_is_missing(tmp_path: Path) -> None:
    launch = ["-m", "cluster.launch", f"--output-dir={tmp_path}", *SMALL]
    refused = run(tmp_path, *launch, "--runtime=ray", status=2)
    assert "Ray is not installed; pip install 'ray[tune]>=2.52'" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


COSTLY = ("torch._dynamo", "torch._inductor", "sympy", "torchvision", "sklearn", "pandas", "ray")

RUN = """
import json, sys
from cluster.launch import main
status = main(sys.argv[2:])
print(json.dumps([status, [name for name in json.loads(sys.argv[1]) if name in sys.modules]]))
"""


@pytest.mark.process
def test_a_run_in_one_process_imports_nothing_that_takes_seconds(tmp_path: Path) -> None:
    arguments = [*SMALL, "--num-clients=2", "--runtime=inprocess", f"--output-dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(COSTLY), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]
