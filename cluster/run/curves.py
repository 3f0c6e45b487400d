"""A run's figures for those who draw curves: TensorBoard, and trackers of experiments."""

import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from cluster.run.progress import LISTED
from fl.errors import reason_of
from fl.events import (
    ClientEnd,
    ClientProgress,
    Epoch,
    Event,
    Phase,
    RoundEnd,
    RoundsResumed,
    RunEnd,
    RunStart,
)
from fl.federation import Client
from fl.json_files import SettingValues
from fl.whole_files import named_errors


def scalars_of(event: Event, metric: str = "accuracy") -> tuple[int, dict[str, float]]:
    """The number of an epoch at the server or of a round, and its figures by tag, as in
    ``fusion/loss``; none of other events. ``metric``: the name of what accuracies are."""
    match event:
        case Epoch():
            # A fit of a later round goes on where that of the round before ended.
            step = (event.round - 1) * event.epochs + event.epoch
            stage = event.stage
            return step, {f"{stage}/loss": event.loss, f"{stage}/{metric}": event.accuracy}
        case RoundEnd():
            seconds = {f"rounds/{part}_seconds": took for part, took in event.took.items()}
            return event.round, {f"rounds/{metric}": event.accuracy, **seconds}
    return 0, {}


def final_figures(result: SettingValues) -> dict[str, float]:
    """The numbers of ``result.json`` at its top level, as ``final/NAME``, and each phase's seconds.

    Under ``final/``, since some trackers make folders of tags, and a run has ``rounds/accuracy``.
    """
    seconds = {f"seconds/{name}": took for name, took in result["seconds"].items()}
    figures = {**result, **seconds}
    return {
        f"final/{name}": float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


FLUSH_S = 2
"""Seconds after which what was written is in the file."""
QUANTILES_S = 5.0
"""Seconds between two looks at the losses of many clients."""
QUANTILES = {"lowest_tenth": 0.1, "median": 0.5, "highest_tenth": 0.9}


class TensorBoard:
    """Writes losses, accuracies and seconds as scalars, and in the end the hyperparameters.

    Where the run's metric is not accuracy, the tags have its name instead: ``fusion/R2``.
    Up to 32 clients have a curve each, ``clients/00007/loss`` by epoch; of more there are three
    quantiles by role, ``clients/generator/loss_median`` by the run's seconds.
    """

    def __init__(
        self, directory: Path, members: tuple[Client, ...], settings: SettingValues | None = None
    ) -> None:
        """``settings``: flat, for the tab HPARAMS, with the final accuracy."""
        from torch.utils.tensorboard import SummaryWriter

        self._directory = directory
        self._writer = SummaryWriter(str(directory), flush_secs=FLUSH_S)
        self._roles = {c.id: c.role for c in members}
        self._settings = settings or {}
        self._round = 1
        self._metric = "accuracy"
        self._losses: dict[int, float] = {}
        self._looked = 0.0

    def __call__(self, event: Event) -> None:
        """Writes the event's figures, if it has any."""
        with named_errors(self._directory):  # its thread reports a full disk at a later event
            self._write(event)

    def _write(self, event: Event) -> None:
        step, figures = scalars_of(event, self._metric)
        for tag, value in figures.items():
            self._writer.add_scalar(tag, value, step)
        match event:
            case RunStart():
                self._metric = event.metric
            case RoundEnd() | RoundsResumed():
                self._round = event.round + 1
            case Phase(took=float(took)):
                self._writer.add_scalar(f"seconds/{event.phase}", took, self._round)
            case ClientProgress():
                self._client(event, event.loss, event.done, event.of or 0)
            case ClientEnd():
                self._client_end(event)
            case RunEnd():
                self._hyperparameters(event.accuracy)

    def close(self) -> None:
        """Flushes and closes the event file."""
        with named_errors(self._directory):
            self._writer.close()

    def _client_end(self, event: ClientEnd) -> None:
        self._writer.add_scalar("local/seconds", event.seconds_training, event.client)
        loss = event.stats.get("train_loss")
        if loss is not None:  # not every task trains
            self._writer.add_scalar("local/train_loss", loss, event.client)
            taken = int(event.stats.get("epochs") or event.stats.get("steps") or 1)
            self._client(event, loss, taken, taken)

    def _client(self, event: ClientProgress | ClientEnd, loss: float, done: int, of: int) -> None:
        if len(self._roles) <= LISTED:
            step = (self._round - 1) * of + done
            self._writer.add_scalar(f"clients/{event.client:05d}/loss", loss, step)
            return
        self._losses[event.client] = loss
        if event.seconds - self._looked >= QUANTILES_S:
            self._looked = event.seconds
            self._write_quantiles(int(event.seconds))

    def _write_quantiles(self, second: int) -> None:
        by_role: dict[str, list[float]] = defaultdict(list)
        for client, loss in self._losses.items():
            by_role[self._roles[client]].append(loss)
        for role, losses in by_role.items():
            for name, share in QUANTILES.items():
                value = float(np.quantile(losses, share))
                self._writer.add_scalar(f"clients/{role}/loss_{name}", value, second)

    def _hyperparameters(self, accuracy: float) -> None:
        if not self._settings:
            return
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in self._settings.items()
        }
        # Written into this directory, where TensorBoard looks for them beside the curves.
        self._writer.add_hparams(plain, {f"final/{self._metric}": accuracy}, run_name=".")


# ``--track``: experiment trackers. They are beside the point of a run: whatever one raises ends its
# own part, with one line on stderr, and never the run.


class Wandb:
    """A run in Weights & Biases. Its own variables say where: WANDB_MODE, WANDB_PROJECT, ..."""

    def __init__(self, run_dir: Path, settings: SettingValues) -> None:
        """Begins a wandb run of the directory's name; its files lie in the directory."""
        import wandb

        self._wandb = wandb
        self._groups: set[str] = set()
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "onefold"),
            name=run_dir.name,
            dir=os.environ.get("WANDB_DIR", str(run_dir)),
            config=dict(settings),
            settings=wandb.Settings(console="off"),  # the terminal is the run's own
        )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Logs figures by their own epoch or round, not by wandb's count of calls."""
        group = next(iter(figures)).partition("/")[0]
        if group not in self._groups:
            self._groups.add(group)
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        self._run.log({**figures, f"{group}/step": step})

    def finish(self, figures: Mapping[str, float], report: Path) -> None:
        """Writes the summary and the report as an artifact."""
        self._run.summary.update(dict(figures))
        name = re.sub(r"[^\w.-]", "-", f"{report.parent.name}-report")
        artifact = self._wandb.Artifact(name, type="report")
        artifact.add_file(str(report))
        self._run.log_artifact(artifact)

    def close(self, *, failed: bool) -> None:
        """Ends the wandb run."""
        self._run.finish(exit_code=int(failed))


LONGEST = 500
"""Characters of a setting that every version of MLflow takes."""


class Mlflow:
    """A run in MLflow, where MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ... say."""

    def __init__(self, run_dir: Path, settings: SettingValues) -> None:
        """Begins an MLflow run of the directory's name."""
        import mlflow

        self._mlflow: Any = mlflow
        if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("file:"):
            # Newer versions want to hear twice that runs are to be kept in a folder.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        if "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            mlflow.set_experiment("onefold")
        mlflow.start_run(run_name=run_dir.name)
        mlflow.log_params({name: str(value)[:LONGEST] for name, value in settings.items()})

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Logs figures by epoch or round."""
        self._mlflow.log_metrics(dict(figures), step=step)

    def finish(self, figures: Mapping[str, float], report: Path) -> None:
        """Logs the final figures and the report as an artifact."""
        self._mlflow.log_metrics(dict(figures))
        self._mlflow.log_artifact(str(report))

    def close(self, *, failed: bool) -> None:
        """Ends the MLflow run."""
        self._mlflow.end_run("FAILED" if failed else "FINISHED")


TRACKERS: dict[str, Callable[[Path, SettingValues], Any]] = {"wandb": Wandb, "mlflow": Mlflow}
"""By name what begins a tracker's view of a run; importing its package takes a second or two."""


class Tracking:
    """A run's trackers, as one listener; one that raises is left out from then on."""

    def __init__(self, trackers: Sequence[str], run_dir: Path, settings: SettingValues) -> None:
        self._trackers: dict[str, Any] = {}
        self._finished, self._metric = False, "accuracy"
        for name in trackers:
            with self._guarded(name):
                self._trackers[name] = TRACKERS[name](run_dir, settings)

    def __call__(self, event: Event) -> None:
        """Hands the event's figures to all trackers, if it has any."""
        self._metric = event.metric if isinstance(event, RunStart) else self._metric
        step, figures = scalars_of(event, self._metric)
        if figures:
            self._each(lambda tracker: tracker.log(step, figures))

    def finish(self, result: SettingValues, report: Path) -> None:
        """Hands the final figures and the report to all trackers."""
        self._finished = True
        self._each(lambda tracker: tracker.finish(final_figures(result), report))

    def close(self) -> None:
        """Ends all trackers' runs: as failed ones, unless :meth:`finish` was called."""
        self._each(lambda tracker: tracker.close(failed=not self._finished))

    def _each(self, use: Callable[[Any], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                use(tracker)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            reason = f"{type(error).__name__}: {reason_of(error)}"
            print(f"onefold: the run goes on without {name}: {reason}", file=sys.stderr)
            if tracker := self._trackers.pop(name, None):
                with suppress(Exception):
                    tracker.close(failed=True)
