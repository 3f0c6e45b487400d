"""What a run directory is read as, damaged and resumed ones too."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fl.errors import UserError
from fl.events import ClientEnd, Epoch, RoundEnd, RoundsResumed, RunStart
from fl.report.events import client_rows, fusion_accuracy, read_events, round_rows
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
    assert run.samples.real.shape == (4, 8, 1, 14, 14)


def test_half_a_line_is_passed_over_wherever_it_stands(tmp_path: Path) -> None:
    whole = json.dumps({"event": "run_start"})
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{whole}\n{{"event": "clie\n{whole}\n17\n{whole[:7]}')
    assert read_events(path) == [RunStart()] * 2


def test_a_resumed_run_counts_its_clients_once() -> None:
    end = ClientEnd(client=0, bytes_up=10, seconds_training=1.5)
    started = RunStart()
    (row,) = client_rows([started, end, started, replace(end, reused=True)]).values()
    assert (row.bytes_up, row.seconds, row.reused) == (10, 1.5, True)


def test_a_client_of_many_rounds_is_summed() -> None:
    end = ClientEnd(client=0, bytes_up=10, seconds_training=1.5)
    (row,) = client_rows([end, replace(end, reused=True)]).values()
    assert (row.bytes_up, row.seconds, row.reused) == (20, 3.0, False)


def test_a_run_resumed_between_rounds_counts_each_round_once() -> None:
    def end(number: int) -> ClientEnd:
        return ClientEnd(client=0, bytes_up=10, seconds_training=1.0, round=number)

    started, resumed = RunStart(), RoundsResumed(round=2, rounds=3)
    events = [started, end(1), end(2), end(3), started, resumed, end(3)]
    (row,) = client_rows(events).values()
    assert row.bytes_up == 30


def test_rounds_take_the_place_of_epochs() -> None:
    def played(number: int, accuracy: float, of: int = 3) -> RoundEnd:
        took = {"local": 1.0, "server": 0.5, "overhead": 0.1}
        return RoundEnd(
            round=number, rounds=of, accuracy=accuracy, took=took, bytes_up=5, bytes_down=4
        )

    rows = round_rows([played(1, 0.1), played(2, 0.2), played(2, 0.3)])
    assert [(r.number, r.accuracy, r.seconds["overhead"]) for r in rows] == [
        (1, 0.1, 0.1),
        (2, 0.3, 0.1),
    ]
    assert round_rows([played(1, 0.1, of=1)]) == []


def test_only_fusion_epochs_count_and_a_fusion_begun_again_replaces_them() -> None:
    def epoch(number: int, accuracy: float, stage: str = "fusion") -> Epoch:
        return Epoch(stage=stage, epoch=number, epochs=3, loss=0.5, accuracy=accuracy)

    events = [epoch(1, 0.1), epoch(1, 0.9, "distil-init"), epoch(2, 0.2), epoch(3, 0.3)]
    assert fusion_accuracy(events) == {1: 0.1, 2: 0.2, 3: 0.3}
    assert fusion_accuracy([*events, epoch(2, 0.5)]) == {1: 0.1, 2: 0.5}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "a: [1"),
        ("config.yaml", "just words"),
        ("config.yaml", "kind: of another program"),
        ("result.json", '{"accuracy": 0.'),
        ("partition.json", '{"kind": "dirichlet"}'),
        ("synthetic/samples.safetensors", "not tensors"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(make_run: MakeRun, name: str, content: str) -> None:
    run_dir = make_run()
    (run_dir / name).write_text(content)
    with pytest.raises(UserError, match=Path(name).name) as raised:
        read_run(run_dir)
    assert "\n" not in str(raised.value)
