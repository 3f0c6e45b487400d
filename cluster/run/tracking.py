"""``--track``: a run's settings, curves, figures and report go to an experiment tracker too.

A tracker is beside the point of a run: whatever it raises ends its own part, with one line on
stderr, and never the run.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.run.command_line import flatten
from cluster.run.options import Launch
from cluster.run.run_dir import nested
from fl.events import Epoch, Event, RoundEnd
from fl.json_files import SettingValues

# An event's figures by tag, for whatever draws curves: TensorBoard, Weights & Biases, MLflow.


@dataclass(frozen=True)
class Scalars:
    """Figures by tag, as in ``fusion/loss``, all of one step: an epoch or a round."""

    step: int = 0
    values: Mapping[str, float] = field(default_factory=dict)


def scalars_of(event: Event) -> Scalars:
    """The figures of an epoch at the server, or of a round; none of other events."""
    match event:
        case Epoch():
            # A fit of a later round goes on where that of the round before ended.
            step = (event.round - 1) * event.epochs + event.epoch
            stage = event.stage
            return Scalars(step, {f"{stage}/loss": event.loss, f"{stage}/accuracy": event.accuracy})
        case RoundEnd():
            seconds = {f"rounds/{part}_seconds": took for part, took in event.took.items()}
            return Scalars(event.round, {"rounds/accuracy": event.accuracy, **seconds})
    return Scalars()


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

    def log(self, scalars: Scalars) -> None:
        """Logs figures by their own epoch or round, not by wandb's count of calls."""
        group = next(iter(scalars.values)).partition("/")[0]
        if group not in self._groups:
            self._groups.add(group)
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        self._run.log({**scalars.values, f"{group}/step": scalars.step})

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

    def log(self, scalars: Scalars) -> None:
        """Logs figures by epoch or round."""
        self._mlflow.log_metrics(dict(scalars.values), step=scalars.step)

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
        self._finished = False
        for name in trackers:
            with self._guarded(name):
                self._trackers[name] = TRACKERS[name](run_dir, settings)

    def __call__(self, event: Event) -> None:
        """Hands the event's figures to all trackers, if it has any."""
        if (scalars := scalars_of(event)).values:
            self._each(lambda tracker: tracker.log(scalars))

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
            reason = " ".join(str(error).split())[:300]
            print(
                f"onefold: the run goes on without {name}: {type(error).__name__}: {reason}",
                file=sys.stderr,
            )
            if tracker := self._trackers.pop(name, None):
                with suppress(Exception):
                    tracker.close(failed=True)


@contextmanager
def tracked(launch: Launch, run_dir: Path) -> Iterator[Tracking]:
    """The trackers that the launch asks for, until the context ends."""
    tracking = Tracking(launch.track, run_dir, flatten(nested(launch.run)))
    try:
        yield tracking
    finally:
        tracking.close()
