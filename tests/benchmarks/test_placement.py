"""The placement benchmark runs, and its figures are possible ones."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_scheduler_is_measured_against_a_bound_it_cannot_undercut(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "placement.py"), "--clients", "10", "50"]
    command += ["--crowds", "50", "100", "--seeds", "2", "--json", str(tmp_path / "figures.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "on a simulated clock" in done.stdout
    told = [json.loads(line) for line in (tmp_path / "figures.json").read_text().splitlines()]
    crowds = [row for row in told if row["kind"] == "crowd"]
    assert [row["clients"] for row in crowds] == [50, 100] * 3
    assert all(row["seconds_each"] > 0 < row["bytes_each"] for row in crowds)
    rows = [row for row in told if row["kind"] == "ratios"]
    assert [row["clients"] for row in rows] == [10, 50] * 3
    for row in rows:
        assert row["ratios"].keys() == {"ours", "first come", "uniform"}
        assert all(len(r) == 2 and min(r) >= 1 - 1e-9 for r in row["ratios"].values())
