"""The examples run as they are, in a folder elsewhere, and are short."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.commands import environment

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.*"))
PRINTED = {
    "own_clients.py": "each site: [",
    "own_method.py": "| fedavgm |",
    "regression.py": "fedprox on own: R2 0.",
    "table.py": "fedavg on own: accuracy 0.9",
    "text.py": "fedavg on own: accuracy 0.",
}
"""Of each script, a part of what it prints."""


def run(command: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment() | {"PATH": path, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_a_script_prints_what_it_is_about(name: str, tmp_path: Path) -> None:
    assert PRINTED[name] in run([sys.executable, str(ROOT / "examples" / name)], tmp_path)


@pytest.mark.parametrize("name", ["grid_on_slurm.sh", "study_on_a_gpu_box.sh"])
def test_a_command_says_what_it_would_do(name: str, tmp_path: Path) -> None:
    dry = ["sh", str(ROOT / "examples" / name), "--dry-run"]
    assert run(dry, tmp_path)
    assert not (tmp_path / "runs").exists()


def test_every_example_is_run_and_below_60_lines() -> None:
    tried = {*PRINTED, "grid_on_slurm.sh", "study_on_a_gpu_box.sh"}
    assert {path.name for path in EXAMPLES} == tried
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) < 60, path
