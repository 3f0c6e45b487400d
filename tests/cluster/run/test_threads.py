"""A run's bits do not depend on the variables by which libraries choose their threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.undrawn import undrawn

SMALL = (
    *("--runtime=inprocess", "--num-clients=2", "--data.max-train=120", "--data.max-test=60"),
    *("--classifier.epochs=1", "--generator.epochs=1", "--num-samples=200", "--fusion.epochs=2"),
)


@pytest.mark.slow
def test_the_number_of_threads_is_the_runs_own(tmp_path: Path) -> None:
    models = set()
    for threads, runtime in (("1", "inprocess"), ("x", "ray"), (None, "inprocess")):
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        if threads is not None:
            environment["OMP_NUM_THREADS"] = threads
        folder = tmp_path / f"{threads}"
        command = [sys.executable, "-m", "cluster.launch", *SMALL, f"--runtime={runtime}"]
        line = undrawn([*command, f"--output-dir={folder}", "--name=run"])
        subprocess.run(line, env=environment, check=True)
        models.add((folder / "run" / "model" / "global.safetensors").read_bytes())
    assert len(models) == 1
