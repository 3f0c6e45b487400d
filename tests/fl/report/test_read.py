"""What a run directory is read as, damaged and resumed ones too."""

from pathlib import Path

import pytest

from fl.errors import UserError
from fl.report.read import read_run
from tests.fl.report.conftest import CURVE, MakeRun


def test_a_finished_run(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert run.result is not None
    assert run.accuracy == CURVE
    assert [row.role for row in run.clients] == ["classifier"] * 2 + ["generator"] * 2
    assert [row.reused for row in run.clients] == [False, True, False, False]
    assert run.partition is not None
    assert run.partition.counts.shape == (4, 4)
    assert run.samples is not None
    assert run.samples["before"].shape == (4, 8, 1, 14, 14)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "a: [1"),
        ("config.yaml", "just words"),
        ("config.yaml", "kind: of another program"),
        ("result.json", '{"accuracy": 0.'),
        ("result.json", '{"confusion": [[1, 2]]}'),
        ("result.json", '{"confusion": [[1, -2], [0, 1]]}'),
        ("result.json", '{"confusion": "much"}'),
        ("partition.json", '{"kind": "dirichlet"}'),
        ("synthetic/samples.safetensors", "not tensors"),
        ("sent/examples.safetensors", "not tensors"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(make_run: MakeRun, name: str, content: str) -> None:
    run_dir = make_run()
    (run_dir / name).parent.mkdir(exist_ok=True)
    (run_dir / name).write_text(content)
    with pytest.raises(UserError, match=Path(name).name) as raised:
        read_run(run_dir)
    assert "\n" not in str(raised.value)
