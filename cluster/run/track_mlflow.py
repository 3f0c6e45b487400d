"""A run in MLflow. Its own variables say where: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ..."""

import os
from collections.abc import Mapping
from pathlib import Path

import mlflow

from cluster.run.tracking import scalars_of
from fl.events import Event
from fl.json_files import SettingValues

LONGEST = 500
"""Characters of a setting that every version of MLflow takes."""


class MlflowTracker:
    """An MLflow run that is fed with a run's events."""

    def __call__(self, event: Event) -> None:
        """Logs the event's figures by epoch or round."""
        scalars = scalars_of(event)
        if scalars.values:
            mlflow.log_metrics(dict(scalars.values), step=scalars.step)

    def finish(self, figures: Mapping[str, float], report: Path) -> None:
        """Logs the final figures and the report as an artifact."""
        mlflow.log_metrics(dict(figures))
        mlflow.log_artifact(str(report))

    def close(self, *, failed: bool) -> None:
        """Ends the MLflow run."""
        mlflow.end_run("FAILED" if failed else "FINISHED")


def start(run_dir: Path, settings: SettingValues) -> MlflowTracker:
    """Begins an MLflow run of the directory's name."""
    if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("file:"):
        # Newer versions want to be told twice that runs are to be kept in a folder.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    if "MLFLOW_EXPERIMENT_NAME" not in os.environ:
        mlflow.set_experiment("onefold")
    mlflow.start_run(run_name=run_dir.name)
    mlflow.log_params({name: str(value)[:LONGEST] for name, value in settings.items()})
    return MlflowTracker()
