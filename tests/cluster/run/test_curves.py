"""What TensorBoard and experiment trackers see of a run; trackers are never in its way."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cluster.run import curves
from cluster.run.command_line import parse
from cluster.run.curves import TensorBoard, final_figures, scalars_of
from cluster.run.prepare import prepare
from cluster.run.run_dir import claim
from cluster.run.runner import execute
from fl.errors import UserError
from fl.events import ClientEnd, ClientProgress, Epoch, Event, Phase, RoundEnd, RunEnd, RunStart
from fl.json_files import JsonObject
from tests.cluster.run.following import MEMBERS, end, many
from tests.waiting import wait_until

TOY = [
    *("--method=fedavg", "--runtime=inprocess", "--num-clients=2", "--name=run"),
    *("--data.max-train=60", "--data.max-test=20", "--rounds=2"),
    *("--classifier.model=cnn", "--classifier.width=0.2", "--classifier.epochs=1"),
]
EPOCH = Epoch(stage="kd", epoch=2, epochs=5, loss=0.5, accuracy=0.25)


class Fake:
    """A tracker that keeps what it is told, and raises where it is to."""

    def __init__(self, raises: str = "") -> None:
        self.raises = raises
        self.told: list[Any] = []

    def start(self, run_dir: Path, settings: Mapping[str, object]) -> "Fake":
        return self._note("start", settings)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._note("log", step)

    def finish(self, figures: Mapping[str, float], report: Path) -> None:
        self._note("finish", report)

    def close(self, *, failed: bool) -> None:
        self._note("close", failed)

    def _note(self, what: str, content: object) -> "Fake":
        self.told.append((what, content))
        if what == self.raises:
            raise ConnectionError("no network\nat all")
        return self


@pytest.mark.parametrize("moment", ["start", "log", "finish", "close"])
def test_a_tracker_that_raises_is_one_line_and_no_more(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, sound = Fake(moment), Fake()
    made = {"wandb": broken.start, "mlflow": sound.start}
    monkeypatch.setattr(curves, "TRACKERS", made)
    both = curves.Tracking(["wandb", "mlflow"], tmp_path, {"lr": 0.1})
    both(RunStart())  # has nothing to draw
    both(EPOCH)
    both.finish({"accuracy": 0.5, "seconds": {}}, tmp_path / "report.html")
    both.close()
    line = "onefold: the run goes on without wandb: ConnectionError: no network at all\n"
    assert capsys.readouterr().err == line
    assert sound.told == [
        ("start", {"lr": 0.1}),
        ("log", 2),
        ("finish", tmp_path / "report.html"),
        ("close", False),
    ]
    if moment == "log":  # it is asked no more, but to close
        assert [what for what, _ in broken.told] == ["start", "log", "close"]


def test_trackers_are_told_the_name_of_the_runs_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    tracker = SimpleNamespace(log=lambda step, figures: told.extend(figures))
    monkeypatch.setattr(curves, "TRACKERS", {"wandb": lambda *given: tracker})
    tracking = curves.Tracking(["wandb"], tmp_path, {})
    for event in (RunStart(metric="R2"), EPOCH, round_end(1)):
        tracking(event)
    assert told[:3] == ["kd/loss", "kd/R2", "rounds/R2"]


def test_a_run_that_fails_is_a_failed_run_for_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    monkeypatch.setattr(curves, "TRACKERS", {"wandb": fake.start})
    made = curves.Tracking(["wandb"], tmp_path, {})
    made.close()
    assert fake.told[-1] == ("close", True)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (None, SimpleNamespace(origin=None)):  # the second is a folder of that name
        monkeypatch.setattr("cluster.run.options.find_spec", lambda _, spec=spec: spec)
        with pytest.raises(
            UserError, match=r"--track wandb needs a package: .* 'onefold\[wandb\]'"
        ):
            parse([*TOY, "--track", "wandb"])


@dataclass(frozen=True)
class Tracked:
    """A run that both trackers were told of, in folders of this machine."""

    folder: Path
    result: JsonObject
    logged: list[dict[str, Any]]
    """What wandb was given to log."""
    mlflow: Any


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracked]:
    root = tmp_path_factory.mktemp("tracking")
    wandb, mlflow = pytest.importorskip("wandb"), pytest.importorskip("mlflow")
    logged: list[dict[str, Any]] = []
    log = wandb.Run.log
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("MLFLOW_TRACKING_URI", f"file:{root / 'mlflow'}")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "")  # undone afterwards, whatever the run sets
        patch.delenv("MLFLOW_ALLOW_FILE_STORE")
        patch.setattr(wandb.Run, "log", lambda run, data: (logged.append(data), log(run, data)))
        launch = parse([*TOY, f"--output-dir={root}", "--track", "wandb", "mlflow"])
        folder = claim(launch)
        quiet = Console(quiet=True)
        # A tracker gets a report even where none is asked for otherwise, as in a sweep's trials.
        result = execute(launch, prepare(launch), folder, quiet, report=False)
        assert wandb.run is None  # it is over
        yield Tracked(folder, result, logged, mlflow)


def test_an_mlflow_run_has_settings_curves_figures_and_report(run: Tracked) -> None:
    (found,) = run.mlflow.search_runs(experiment_names=["onefold"], output_format="list")
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["classifier.width"] == "0.2"
    assert found.data.metrics["final/accuracy"] == run.result["accuracy"]
    client = run.mlflow.MlflowClient()
    curve = client.get_metric_history(found.info.run_id, "rounds/accuracy")
    expected = [*enumerate(run.result["accuracy_curve"], start=1)]
    assert [(point.step, point.value) for point in curve] == expected
    assert [a.path for a in client.list_artifacts(found.info.run_id)] == ["report.html"]


def test_a_wandb_run_is_written_offline(run: Tracked) -> None:
    assert [row["rounds/accuracy"] for row in run.logged] == run.result["accuracy_curve"]
    assert [row["rounds/step"] for row in run.logged] == [1, 2]
    (kept,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    expected = (b"classifier.width", b"rounds/accuracy", b"run-report", b"final/best_accuracy")
    # wandb's own process writes it, and ends a little later than the run.
    wait_until(lambda: all(told in kept.read_bytes() for told in expected))


def test_an_event_has_its_figures_at_its_own_step() -> None:
    assert scalars_of(EPOCH) == (2, {"kd/loss": 0.5, "kd/accuracy": 0.25})
    took = {"server": 1.5}
    ended = RoundEnd(round=7, rounds=9, took=took, accuracy=0.5, bytes_up=0, bytes_down=0)
    assert scalars_of(ended) == (7, {"rounds/accuracy": 0.5, "rounds/server_seconds": 1.5})
    assert scalars_of(RunStart()) == (0, {})


def test_final_figures_are_the_numbers_of_a_result() -> None:
    result = {"accuracy": 0.5, "method": "fedavg", "whole": True, "per_class_accuracy": [0.1]}
    result["seconds"] = {"local": 2.0, "total": 3}
    assert final_figures(result) == {
        "final/accuracy": 0.5,
        "final/seconds/local": 2.0,
        "final/seconds/total": 3.0,
    }


# What TensorBoard sees of a run, and how soon.


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
    monkeypatch.setattr(curves, "FLUSH_S", 0.05)
    with closing(TensorBoard(tmp_path, MEMBERS)) as board:
        board(told(0, 1, 0.75))
        wait_until(lambda: "clients/00000/loss" in seen(tmp_path).Tags()["scalars"], within=10)


def test_a_full_disk_is_an_error_that_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    board = TensorBoard(tmp_path, ())
    monkeypatch.setattr(board._writer, "add_scalar", full)
    with pytest.raises(OSError, match=r"No space left on device: .*/test_a_full"):
        board(Phase(phase="fusion", status="end", took=1.0))
