"""What metrics.jsonl tells, of resumed runs and of half a file too."""

import json
import math
from dataclasses import replace
from pathlib import Path

from fl.events import (
    AttemptFailed,
    ClientDropped,
    ClientEnd,
    Epoch,
    RoundEnd,
    RoundsResumed,
    RunStart,
)
from fl.report.read import (
    Failure,
    client_accuracy,
    client_failures,
    client_losses,
    client_rows,
    fusion_accuracy,
    read_events,
    round_rows,
)


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


def test_losses_are_curves_by_epoch_or_within_rounds() -> None:
    def end(number: int, losses: list[float]) -> ClientEnd:
        return ClientEnd(client=3, role="head", model="cnn", round=number, losses=losses)

    events = [ClientEnd(client=1), RunStart(), end(1, [2.0, math.inf]), end(3, [0.5, 0.25])]
    (curve,) = client_losses(events)
    assert (curve.client, curve.role, curve.model) == (3, "head", "cnn")
    assert curve.steps == [1, 2, 3, 4]
    assert math.isnan(curve.losses[1])
    assert [curve.losses[k] for k in (0, 2, 3)] == [2, 0.5, 0.25]
    (curve,) = client_losses(events, in_rounds=True)
    assert curve.steps == [0.5, 1, 2.5, 3]


def test_parts_of_steps_end_where_their_steps_do() -> None:
    told = ClientEnd(client=0, role="condenser")  # a task that does not train
    end = ClientEnd(client=0, role="condenser", losses=[3.0, 2.0, 1.0], stats={"steps": 60.0})
    (curve,) = client_losses([told, end, told])
    assert (curve.steps, curve.unit) == ([20, 40, 60], "step")
    (curve,) = client_losses([told, replace(end, round=2), told], in_rounds=True)
    assert (curve.steps[-1], curve.unit) == (2, "round")


def test_a_resumed_runs_losses_count_once() -> None:
    end, started = ClientEnd(client=0, losses=[2.0, 1.0]), RunStart()
    (curve,) = client_losses([started, end, started, replace(end, reused=True)])
    assert curve.losses == [2, 1]


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


def test_clients_are_scored_round_by_round_where_they_are() -> None:
    def played(number: int, *own: float | None) -> RoundEnd:
        return RoundEnd(
            round=number,
            rounds=3,
            accuracy=0.5,
            took={},
            bytes_up=5,
            bytes_down=4,
            client_accuracy=list(own),
        )

    events = [played(2, 0.1, None), played(1, 0.3, 0.4), played(2, 0.5, None), played(3, None)]
    assert list(client_accuracy(events).items()) == [(1, [0.3, 0.4]), (2, [0.5, None])]
    assert client_accuracy([played(1), RunStart()]) == {}


def test_only_fusion_epochs_count_and_a_fusion_begun_again_replaces_them() -> None:
    def epoch(number: int, accuracy: float, stage: str = "fusion") -> Epoch:
        return Epoch(stage=stage, epoch=number, epochs=3, loss=0.5, accuracy=accuracy)

    events = [epoch(1, 0.1), epoch(1, 0.9, "distil-init"), epoch(2, 0.2), epoch(3, 0.3)]
    assert fusion_accuracy(events) == {1: 0.1, 2: 0.2, 3: 0.3}
    assert fusion_accuracy([*events, epoch(2, 0.5)]) == {1: 0.1, 2: 0.5}


def test_without_a_metrics_file_nothing_has_happened(tmp_path: Path) -> None:
    assert read_events(tmp_path / "metrics.jsonl") == []
    assert client_rows([]) == {}
    assert fusion_accuracy([]) == {}


def test_letters_that_are_none_spoil_their_own_line_alone(tmp_path: Path) -> None:
    whole = json.dumps({"event": "run_start"}).encode()
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(whole + b"\n" + whole[:5] + b"\xff\xfe\n" + whole + b"\n")
    assert read_events(path) == [RunStart()] * 2


def test_clients_stand_by_number_with_what_the_latest_event_says_of_them() -> None:
    first = ClientEnd(client=7, role="classifier", model="cnn", num_samples=5)
    later = replace(first, model="vgg9", num_samples=6)
    rows = client_rows([first, ClientEnd(client=2), later])
    assert list(rows) == [2, 7]
    assert (rows[7].model, rows[7].samples) == ("vgg9", 6)


def test_failures_are_those_since_the_run_was_last_started_in_their_order() -> None:
    failed = AttemptFailed(client=2, attempt=1, reason="it died")
    dropped = ClientDropped(client=2, reason="it died twice")
    events = [RunStart(), replace(failed, client=9), RunStart(), failed, dropped]
    assert client_failures(events) == [Failure(2, 1, "it died"), Failure(2, None, "it died twice")]
