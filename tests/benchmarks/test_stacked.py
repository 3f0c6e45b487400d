"""The benchmark of cohorts runs, and its figures are possible ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_way_trains_and_none_beats_the_bound(tmp_path: Path, mnist_root: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "stacked.py"), "--clients", "10"]
    command += ["--rounds", "1", "--data-root", str(mnist_root)]
    command += ["--json", str(tmp_path / "figures.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["ways"]) == 6
    for row in figures["ways"].values():
        assert 0 < row["share_of_bound"] < 1
        assert row["peak_bytes"] > 2**26
    ratios = [row["over_one_by_one"] for row in list(figures["ways"].values())[:2]]
    assert max(ratios) == 1
