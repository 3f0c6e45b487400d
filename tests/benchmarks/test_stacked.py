"""The benchmark of cohorts runs every way to the end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_way_trains_and_is_told(tmp_path: Path, mnist_root: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "stacked.py"), "--clients", "10"]
    command += ["--rounds", "1", "--data-root", str(mnist_root)]
    command += ["--json", str(tmp_path / "figures.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=850)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["ways"]) == 6
    for row in figures["ways"].values():
        assert row["clients_per_second"] > 0
        assert row["peak_bytes"] > 2**26
        assert row["ready_seconds"] > 0
    ratios = [row["over_one_by_one"] for row in list(figures["ways"].values())[:2]]
    assert max(ratios) == 1
