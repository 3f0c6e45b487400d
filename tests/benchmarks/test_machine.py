"""What a machine can do at most, and figures that are on disk one by one."""

import json
import time
from pathlib import Path

import machine
import pytest
import torch
from machine import Options, Rows, seconds_of

CPU = torch.device("cpu")


def test_rows_are_added_line_by_line_with_the_programs_name(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    Rows("one", file).add(kind="a", value=1)
    Rows("other", file).add(kind="b", shape=(2, 3))
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"benchmark": "one", "kind": "a", "value": 1},
        {"benchmark": "other", "kind": "b", "shape": [2, 3]},
    ]
    Rows("none", None).add(kind="c")


def test_seconds_are_of_the_quickest_call_after_one_to_warm_up() -> None:
    calls = []

    def work() -> None:
        calls.append(0)
        time.sleep(0.05 if len(calls) in (1, 2) else 0.01)

    assert 0.01 <= seconds_of(work, CPU, repeats=3) < 0.05
    assert len(calls) == 4


def test_a_rate_is_of_the_bytes_and_the_flop_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "seconds_of", lambda work, device, repeats=10: 0.5)
    assert machine.copy_bandwidth(CPU) == 2 * 2**28 / 0.5
    assert machine.matrix_rate("fp32", CPU) == 2 * 1024**3 / 0.5


def test_the_program_tells_the_machine_and_its_ceilings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "seconds_of", lambda work, device, repeats=10: 0.5)
    monkeypatch.setattr(machine, "default_device", lambda: CPU)
    assert machine.main(Options(json=tmp_path / "rows")) == 0
    first, *ceilings = map(json.loads, (tmp_path / "rows").read_text().splitlines())
    assert {"date", "device", "cores", "torch", "first_convolution_s"} <= first.keys()
    names = [row["name"] for row in ceilings]
    assert names == ["copy_bytes_per_second", "fp32_flop_per_second"]
