"""scikit-learn's small data sets go through a run, here and on Ray."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.commands import environment
from tests.onefold.small_sets import LEAST, run
from tests.registries import registries_restored
from tests.undrawn import WRITE_REPORT, draw_nothing

ON_RAY = {"linnerud", "multilabel"}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", LEAST)
def test_a_set_is_learned(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WRITE_REPORT, draw_nothing)
    with registries_restored():
        assert run(name, "inprocess", output_dir=tmp_path).accuracy > LEAST[name]


@pytest.mark.slow
def test_a_script_learns_several_of_them_on_ray(tmp_path: Path) -> None:
    """Two of the eleven: each is a launch of some seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.undrawn", "tests.onefold.small_sets", "ray", *ON_RAY],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(line.split() for line in done.stdout.splitlines() if line.split()[0] in LEAST)
    assert found.keys() == ON_RAY
    assert all(float(accuracy) > LEAST[name] for name, accuracy in found.items())
