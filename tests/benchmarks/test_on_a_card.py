"""Steps of first light: they tell what runs did, where time went, and whether ranks agree."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from on_a_card import covered, followed, profiled

WRITES = """
import sys, time
with open(sys.argv[1], "w") as file:
    for part in ('{"event": "a"}\\n{"eve', 'nt": "b"}\\n', '{"event": "cut'):
        file.write(part)
        file.flush()
        time.sleep(0.3)
"""


@pytest.mark.process
def test_a_run_is_followed_by_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    with subprocess.Popen([sys.executable, "-c", WRITES, str(file)]) as process:
        assert [event["event"] for event in followed(file, process)] == ["a", "b"]


@pytest.mark.parametrize(
    ("spans", "length"), [([], 0), ([(0, 2), (1, 3), (5, 6)], 4), ([(0, 9), (2, 3)], 9)]
)
def test_time_that_is_covered_twice_counts_once(
    spans: list[tuple[float, float]], length: float
) -> None:
    assert covered(spans) == length


def test_a_profile_counts_what_each_step_runs_and_what_takes_longest() -> None:
    factor = torch.rand(300, 300)

    def work() -> None:
        for _ in range(5):
            _ = factor @ factor

    found = profiled(work, 5)
    assert found["kernels_a_step"] == 1
    assert found["longest"] == {"aten::matmul": 1.0}
    assert 0 < float(str(found["busy_share"])) <= 1
