"""What a run directory and its events are read as, damaged and resumed ones too."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from fl.errors import UserError
from fl.events import (
    AttemptFailed,
    ClientDropped,
    ClientEnd,
    Epoch,
    Event,
    RoundEnd,
    RoundsResumed,
    RunStart,
)
from fl.report.read import (
    client_failures,
    client_losses,
    client_rows,
    fusion_accuracy,
    read_events,
    read_run,
)
from tests.fl.report.conftest import CURVE, START, MakeRun, record

END = ClientEnd(client=0, bytes_up=10, seconds_training=1.5)
STARTED = RunStart()


def test_a_finished_run(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert run.accuracy == CURVE
    assert run.curve == {0: START, **CURVE}
    assert [row.role for row in run.clients] == ["classifier"] * 2 + ["generator"] * 2
    assert [row.reused for row in run.clients] == [False, True, False, False]
    assert run.partition is not None
    assert run.partition.counts.shape == (4, 4)
    assert run.samples is not None
    assert run.samples["before"].shape == (4, 8, 1, 14, 14)
    assert (run.name, run.step, run.scores) == ("run", "epoch", {})


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_scores_its_clients(make_scored: MakeRun, finished: bool) -> None:
    run_dir = make_scored()
    if not finished:
        (run_dir / "result.json").unlink()
    run = read_run(run_dir)
    assert run.step == "round"
    assert run.scores == {0: 0.5, 1: 0.7, 3: 0.9}
    assert bool(run.result) == finished


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "a: [1"),
        ("config.yaml", "just words"),
        ("config.yaml", "kind: of another program"),
        ("result.json", '{"accuracy": 0.'),
        ("partition.json", "[]"),
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


def test_classes_have_the_partitions_names_if_it_has_as_many(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert run.class_names(4) == [f"class {k}" for k in range(4)]
    assert run.class_names(3) == record().class_names(3) == ["0", "1", "2"]


def test_half_a_line_of_the_events_is_passed_over_wherever_it_stands(tmp_path: Path) -> None:
    whole = json.dumps({"event": "run_start"}).encode()
    path = tmp_path / "metrics.jsonl"
    assert read_events(path) == []
    path.write_bytes(b"\n".join([whole, b'{"event": "clie', b"\xff\xfe", whole, b"17", whole[:7]]))
    assert read_events(path) == [STARTED] * 2


FIRST, SECOND, THIRD = (replace(END, round=number) for number in (1, 2, 3))
AGAIN = replace(END, reused=True, model="vgg9")


@pytest.mark.parametrize(
    ("events", "row"),
    [
        ([STARTED, END, STARTED, AGAIN], (10, 1.5, True, "vgg9")),  # resumed: counted once
        ([END, AGAIN], (20, 3.0, False, "vgg9")),  # of two rounds: summed, with the last model
        (
            [STARTED, FIRST, SECOND, THIRD, STARTED, RoundsResumed(round=2, rounds=3), THIRD],
            (30, 4.5, False, None),
        ),  # resumed between rounds: each round once
        (
            [
                *[STARTED, FIRST, STARTED, RoundsResumed(round=1, rounds=2), SECOND],
                *[STARTED, RoundsResumed(round=2, rounds=3), THIRD],
            ],
            (30, 4.5, False, None),
        ),  # and once more
        (
            [STARTED, FIRST, STARTED, FIRST, SECOND, STARTED, RoundsResumed(round=2, rounds=2)],
            (20, 3.0, False, None),
        ),  # killed within its first round, of which no state was saved, and again
        (
            [STARTED, FIRST, STARTED, STARTED, RoundsResumed(round=1, rounds=2), SECOND],
            (20, 3.0, False, None),
        ),  # killed before it was resumed
    ],
    ids=["resumed", "rounds", "between rounds", "twice", "within a round", "too early"],
)
def test_a_client_is_summed_over_rounds_each_of_which_counts_once(
    events: list[Event], row: tuple[int, float, bool, str | None]
) -> None:
    (found,) = client_rows(events).values()
    assert (found.bytes_up, found.seconds, found.reused, found.model) == row


def test_clients_are_in_the_order_of_their_ids() -> None:
    assert list(client_rows([replace(END, client=7), replace(END, client=2)])) == [2, 7]


def test_losses_are_curves_by_epoch_or_within_rounds() -> None:
    def end(number: int, losses: list[float]) -> ClientEnd:
        return ClientEnd(client=3, role="head", model="cnn", round=number, losses=losses)

    events = [END, STARTED, end(1, [2.0, math.inf]), end(3, [0.5, 0.25])]
    (curve,) = client_losses(events)
    assert (curve.client, curve.role, curve.model) == (3, "head", "cnn")
    assert (curve.steps, curve.unit) == ([1, 2, 3, 4], "epoch")
    assert math.isnan(curve.losses[1])
    assert [curve.losses[k] for k in (0, 2, 3)] == [2, 0.5, 0.25]
    (curve,) = client_losses(events, in_rounds=True)
    assert (curve.steps, curve.unit) == ([0.5, 1, 2.5, 3], "round")


def test_losses_of_parts_of_steps_count_steps() -> None:
    end = ClientEnd(client=0, losses=[3.0, 2.0, 1.0], stats={"steps": 60.0})
    (curve,) = client_losses([END, end, END])  # END: a task that does not train
    assert (curve.steps, curve.unit) == ([20, 40, 60], "step")


def test_of_rounds_that_were_repeated_the_later_count(tmp_path: Path) -> None:
    def played(number: int, *own: float | None, accuracy: float = 0.5) -> RoundEnd:
        end = RoundEnd(round=number, rounds=3, accuracy=accuracy, took={}, bytes_up=5, bytes_down=4)
        return replace(end, client_accuracy=list(own))

    events = [played(2, 0.1, None), played(1, 0.3, 0.4), STARTED, played(2, 0.5, accuracy=0.9)]
    told = [json.dumps(event.to_json()) for event in (*events, played(3, None))]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*told, ""]))
    (tmp_path / "config.yaml").write_text("{method: fedper, dataset: digits}")
    run = read_run(tmp_path)
    assert [(r.round, r.accuracy) for r in run.rounds] == [(1, 0.5), (2, 0.9), (3, 0.5)]
    assert run.client_accuracy == {1: [0.3, 0.4], 2: [0.5]}


def test_only_fusion_epochs_count_and_a_fusion_begun_again_replaces_them() -> None:
    def epoch(number: int, accuracy: float, stage: str = "fusion") -> Epoch:
        return Epoch(stage=stage, epoch=number, epochs=3, loss=0.5, accuracy=accuracy)

    events = [epoch(1, 0.1), epoch(1, 0.9, "distil-init"), epoch(2, 0.2), epoch(3, 0.3)]
    assert fusion_accuracy(events) == {1: 0.1, 2: 0.2, 3: 0.3}
    assert fusion_accuracy([*events, epoch(2, 0.5)]) == {1: 0.1, 2: 0.5}


def test_failures_are_those_since_the_run_was_last_started() -> None:
    failed = AttemptFailed(client=2, attempt=1, reason="it died")
    dropped = ClientDropped(client=2, reason="it died twice")
    assert client_failures([STARTED, failed, STARTED, failed, dropped]) == [failed, dropped]
