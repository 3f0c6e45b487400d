"""A run in Weights & Biases. Its own variables say where: WANDB_MODE, WANDB_PROJECT, ..."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from cluster.run.tracking import scalars_of
from fl.events import Event
from fl.json_files import SettingValues


class WandbTracker:
    """A wandb run that is fed with a run's events."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._groups: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Logs the event's figures by their own epoch or round, not by wandb's count of calls."""
        scalars = scalars_of(event)
        if not scalars.values:
            return
        group = next(iter(scalars.values)).partition("/")[0]
        if group not in self._groups:
            self._groups.add(group)
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        self._run.log({**scalars.values, f"{group}/step": scalars.step})

    def finish(self, figures: Mapping[str, float], report: Path) -> None:
        """Writes the summary and the report as an artifact."""
        self._run.summary.update(dict(figures))
        name = re.sub(r"[^\w.-]", "-", f"{report.parent.name}-report")
        artifact = wandb.Artifact(name, type="report")
        artifact.add_file(str(report))
        self._run.log_artifact(artifact)

    def close(self, *, failed: bool) -> None:
        """Ends the wandb run."""
        self._run.finish(exit_code=int(failed))


def start(run_dir: Path, settings: SettingValues) -> WandbTracker:
    """Begins a wandb run of the directory's name; its files lie in the directory."""
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "onefold"),
        name=run_dir.name,
        dir=os.environ.get("WANDB_DIR", str(run_dir)),
        config=dict(settings),
        settings=wandb.Settings(console="off"),  # the terminal is the run's own
    )
    return WandbTracker(run)
