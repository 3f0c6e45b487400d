"""Steps of first light: they tell what runs did, where time went, and whether ranks agree."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import on_a_card
import pytest
import torch
from machine import Rows
from on_a_card import Options, covered, followed, profiled

from tests.undrawn import undrawn

WRITES = """
import sys, time
with open(sys.argv[1], "w") as file:
    for part in ('{"event": "a"}\\n{"eve', 'nt": "b"}\\n', '{"event": "cut'):
        file.write(part)
        file.flush()
        time.sleep(0.3)
"""


def told(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


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


def test_two_ranks_agree_with_one_and_say_by_what_they_met(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    assert on_a_card.main(Options(step="ranks", json=rows)) == 0
    (row,) = told(rows)
    assert row["backend"] == "gloo"
    assert float(str(row["apart"])) < on_a_card.APART


def test_a_launch_tells_its_clients_its_epochs_and_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def without_report(line: list[str], **how: Any) -> Any:
        return start(undrawn(line), **how)

    monkeypatch.setattr(on_a_card.subprocess, "Popen", without_report)
    few = ("--num-clients=2", "--data.max-train=60", "--fusion.epochs=2", "--num-samples=20")
    rows = Rows("main", tmp_path / "rows")
    assert on_a_card.launch("short", (*on_a_card.SHORT, *few), {}, rows) == 0
    kinds = [row["kind"] for row in told(tmp_path / "rows")]
    assert kinds == ["client_end"] * 2 + ["epoch"] * 2 + ["result"]


def test_a_launch_that_fails_tells_its_status(tmp_path: Path) -> None:
    rows = Rows("main", tmp_path / "rows")
    assert on_a_card.launch("bad", ("--alpha=-1",), {}, rows) == 2
    assert not (tmp_path / "rows").exists()
