"""What a machine can do at most, and figures that are on disk one by one."""

import json
from pathlib import Path

import machine
import pytest
import torch
from machine import Options, Rows

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
