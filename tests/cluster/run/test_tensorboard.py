"""What TensorBoard sees of a run, and how soon."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cluster.run import tensorboard
from cluster.run.tensorboard import TensorBoard
from fl.events import ClientEnd, ClientProgress, Epoch, Event, Phase, RoundEnd, RunEnd, RunStart
from tests.cluster.run.following import MEMBERS, end, many
from tests.waiting import wait_until


def seen(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(point.step, pytest.approx(point.value)) for point in seen(folder).Scalars(tag)]


def told(k: int, done: int, loss: float, at: float = 0.0) -> ClientProgress:
    return ClientProgress(client=k, done=done, of=4, loss=loss, seconds=at)


def ended(k: int, loss: float) -> ClientEnd:
    return replace(end(MEMBERS[0]), client=k, stats={"train_loss": loss, "epochs": 4})


def round_end(number: int) -> RoundEnd:
    return RoundEnd(
        round=number, rounds=2, took={"local": 2.0}, accuracy=0.5, bytes_up=0, bytes_down=0
    )


@pytest.fixture
def board(tmp_path: Path) -> Iterator[TensorBoard]:
    with closing(TensorBoard(tmp_path, MEMBERS, {"lr": 0.1, "clip": None})) as made:
        yield made


def write(board: TensorBoard, *events: Event) -> None:
    for event in events:
        board(event)
    board.close()


def test_each_client_has_a_curve_that_goes_on_from_round_to_round(
    board: TensorBoard, tmp_path: Path
) -> None:
    write(board, told(0, 1, 0.75), ended(0, 0.5), round_end(1), told(0, 2, 0.25))
    assert curve(tmp_path, "clients/00000/loss") == [(1, 0.75), (4, 0.5), (6, 0.25)]


def test_many_clients_have_quantiles_by_role(tmp_path: Path) -> None:
    members = (*many(101), replace(many(1)[0], id=101, role="head"))
    board = TensorBoard(tmp_path, members)
    events = [told(k, 1, float(k), at=1.0) for k in range(101)]
    write(board, *events, told(101, 1, 7.0, at=60.0))
    tags = seen(tmp_path).Tags()["scalars"]
    assert len(tags) == 6
    assert curve(tmp_path, "clients/classifier/loss_median") == [(60, 50.0)]
    assert curve(tmp_path, "clients/classifier/loss_highest_tenth") == [(60, 90.0)]
    assert curve(tmp_path, "clients/head/loss_lowest_tenth") == [(60, 7.0)]


def test_rounds_fits_and_seconds_have_curves(board: TensorBoard, tmp_path: Path) -> None:
    epoch = Epoch(stage="fusion", round=2, epoch=3, epochs=10, loss=0.25, accuracy=0.5)
    write(board, epoch, round_end(1), Phase(phase="fusion", status="end", took=8.0))
    assert curve(tmp_path, "fusion/loss") == [(13, 0.25)]
    assert curve(tmp_path, "fusion/accuracy") == [(13, 0.5)]
    assert curve(tmp_path, "rounds/accuracy") == [(1, 0.5)]
    assert curve(tmp_path, "rounds/local_seconds") == [(1, 2.0)]
    assert curve(tmp_path, "seconds/fusion") == [(2, 8.0)]


def test_the_settings_are_hyperparameters_with_the_final_accuracy(
    board: TensorBoard, tmp_path: Path
) -> None:
    write(board, RunEnd(accuracy=0.875))
    assert curve(tmp_path, "final/accuracy") == [(0, 0.875)]
    plugin = seen(tmp_path).summary_metadata["_hparams_/session_start_info"]
    content = plugin.plugin_data.content
    assert b"lr" in content
    assert b"None" in content
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []  # in this run, not in one beside it


def test_the_tags_have_the_name_of_the_runs_metric(board: TensorBoard, tmp_path: Path) -> None:
    epoch = Epoch(stage="fusion", epoch=1, epochs=1, loss=0.25, accuracy=0.5)
    write(board, RunStart(metric="R2"), epoch, round_end(1), RunEnd(accuracy=-0.5))
    assert curve(tmp_path, "fusion/R2") == [(1, 0.5)]
    assert curve(tmp_path, "rounds/R2") == [(1, 0.5)]
    assert curve(tmp_path, "final/R2") == [(0, -0.5)]
    assert not [tag for tag in seen(tmp_path).Tags()["scalars"] if "accuracy" in tag]


def test_a_running_tensorboard_sees_it_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "FLUSH_S", 0.05)
    with closing(TensorBoard(tmp_path, MEMBERS)) as board:
        board(told(0, 1, 0.75))
        wait_until(lambda: "clients/00000/loss" in seen(tmp_path).Tags()["scalars"], seconds=10)


def test_a_full_disk_is_an_error_that_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    board = TensorBoard(tmp_path, ())
    monkeypatch.setattr(board._writer, "add_scalar", full)
    with pytest.raises(OSError, match=r"No space left on device: .*/test_a_full"):
        board(Phase(phase="fusion", status="end", took=1.0))
