"""Experiment trackers: told of a run, and never in its way."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cluster.run import tracking
from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from cluster.run.run_dir import claim
from cluster.run.runner import execute
from fl.errors import UserError
from fl.events import Event, RunStart
from fl.json_values import JsonObject
from tests.waiting import wait_until

TOY = [
    *("--method=fedavg", "--runtime=inprocess", "--num-clients=2", "--name=run"),
    *("--data.max-train=60", "--data.max-test=20", "--rounds=2"),
    *("--classifier.model=cnn", "--classifier.width=0.2", "--classifier.epochs=1"),
]


def tracked_run(root: Path, *trackers: str) -> tuple[Path, JsonObject]:
    launch = parse([*TOY, f"--output-dir={root}", "--track", *trackers])
    folder = claim(launch)
    return folder, execute(launch, prepare(launch), folder, Console(quiet=True))


class Fake:
    """A tracker that keeps what it is told, and raises where it is to."""

    def __init__(self, raises: str = "") -> None:
        self.raises = raises
        self.told: list[Any] = []

    def start(self, run_dir: Path, settings: Mapping[str, object]) -> "Fake":
        return self._note("start", settings)

    def __call__(self, event: Event) -> None:
        self._note("event", event)

    def finish(self, figures: Mapping[str, float], report: Path) -> None:
        self._note("finish", report)

    def close(self, *, failed: bool) -> None:
        self._note("close", failed)

    def _note(self, what: str, content: object) -> "Fake":
        self.told.append((what, content))
        if what == self.raises:
            raise ConnectionError("no network\nat all")
        return self


@pytest.mark.parametrize("moment", ["start", "event", "finish", "close"])
def test_a_tracker_that_raises_is_one_line_and_the_run_goes_on(
    moment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken, sound = Fake(moment), Fake()
    made = {"cluster.run.track_wandb": broken, "cluster.run.track_mlflow": sound}
    monkeypatch.setattr(tracking, "import_module", lambda name: made[name])
    monkeypatch.setattr("cluster.run.options.find_spec", lambda _: SimpleNamespace(origin="here"))
    folder, result = tracked_run(tmp_path, "wandb", "mlflow")
    assert 0 <= result["accuracy"] <= 1
    line = "onefold: the run goes on without wandb: ConnectionError: no network at all\n"
    assert capsys.readouterr().err == line
    assert sound.told[0] == ("start", sound.told[0][1])
    assert sound.told[0][1]["classifier.width"] == 0.2
    assert isinstance(sound.told[1][1], RunStart)
    assert sound.told[-2:] == [("finish", folder / "report.html"), ("close", False)]
    if moment == "event":  # it is asked no more, but to close
        assert [what for what, _ in broken.told] == ["start", "event", "close"]


def test_a_run_that_fails_is_a_failed_run_for_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    monkeypatch.setattr(tracking, "import_module", lambda _: fake)
    made = tracking.Tracking(["wandb"], tmp_path, {})
    made.close()
    assert fake.told[-1] == ("close", True)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (None, SimpleNamespace(origin=None)):  # the second is a folder of that name
        monkeypatch.setattr("cluster.run.options.find_spec", lambda _, spec=spec: spec)
        with pytest.raises(UserError, match=r"--track wandb needs .* 'onefold\[wandb\]'"):
            parse([*TOY, "--track", "wandb"])


def test_only_known_trackers_are_taken() -> None:
    with pytest.raises(UserError, match="mlflow"):
        parse([*TOY, "--track", "neptune"])


def test_an_mlflow_run_has_settings_curves_figures_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlflow'}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")  # undone afterwards, whatever the run sets
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    mlflow = pytest.importorskip("mlflow")
    _, result = tracked_run(tmp_path / "runs", "mlflow")
    (run,) = mlflow.search_runs(experiment_names=["onefold"], output_format="list")
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["classifier.width"] == "0.2"
    assert run.data.metrics["final/accuracy"] == result["accuracy"]
    client = mlflow.MlflowClient()
    curve = client.get_metric_history(run.info.run_id, "rounds/accuracy")
    assert [(p.step, p.value) for p in curve] == [*enumerate(result["accuracy_curve"], start=1)]
    assert [a.path for a in client.list_artifacts(run.info.run_id)] == ["report.html"]


def test_a_wandb_run_is_written_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    heard: list[dict[str, Any]] = []
    log = wandb.Run.log
    monkeypatch.setattr(wandb.Run, "log", lambda run, data: (heard.append(data), log(run, data)))
    folder, result = tracked_run(tmp_path, "wandb")
    (kept,) = folder.glob("wandb/offline-run-*/*.wandb")
    expected = (b"classifier.width", b"rounds/accuracy", b"run-report", b"final/best_accuracy")
    # wandb's own process writes it, and ends a little later than the run.
    wait_until(lambda: all(told in kept.read_bytes() for told in expected), seconds=20)
    assert [row["rounds/accuracy"] for row in heard] == result["accuracy_curve"]
    assert [row["rounds/step"] for row in heard] == [1, 2]
    assert wandb.run is None  # it is over
