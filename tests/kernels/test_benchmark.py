"""The benchmark runs, on shapes that take no time, and says what it could not run."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_measures_every_procedure(tmp_path: Path) -> None:
    found = subprocess.run(
        [
            *(sys.executable, "benchmarks/distance.py", "--seconds", "0.01"),
            *("--shapes", "60", "8", "3", "2000000", "3072", "2", "--json", str(tmp_path / "json")),
            *("--device", "cpu"),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "2,000,000 samples, 3,072 features, 2 classes: skipped, needs a GPU" in found.stdout
    report = json.loads((tmp_path / "json").read_text())
    assert report["skipped"] == [[2_000_000, 3072, 2]]
    assert {"date", "device", "cores", "torch"} <= report["machine"].keys()
    (row,) = report["rows"]
    procedures = row["procedures"]
    ran = ("ours, reference", "ours, torch", "released, threads: 1", "torch.cdist loop")
    assert all(procedures[name]["median"] > 0 for name in (*ran, "two reads"))
    assert procedures["ours, triton"]["remark"] == "needs CUDA and Triton"
    released, torch_ms = (procedures[n]["median"] for n in (ran[2], ran[1]))
    assert row["ratios"]["ours, torch"]["released_over_this"] == released / torch_ms
