"""Population-based training: trials that go on from another's state, under other settings.

What Tune hands from trial to trial is a checkpoint of ours: the state of the server's fit, and the
schedule that led there. A trial that takes one takes its settings too, all but those that pbt
changes: what shaped the samples and the model stays what it was when the fit began.
"""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster.run.options import Launch
from cluster.run.prepare import Prepared
from cluster.run.run_dir import write_json
from cluster.run.runner import CHECKPOINTS
from fl.events import Epoch, Event
from fl.fusion.checkpoints import Checkpoints
from fl.json_values import JsonObject, SettingValues
from tune.folder import write_configuration
from tune.rows import is_epoch
from tune.trials import RESULT, SCHEDULE, SETTINGS, run_trial

PARTS = 5
"""Of the longest fit, at most; between two of them a trial may go on from another's state."""
STAGE = "fusion"
"""The fit that a method's result comes from."""
ORIGIN = "origin.json"
"""Beside a state that is handed on: its epoch, and the schedule that led there."""


def interval(epochs: int) -> int:
    """Epochs of a fit after which a trial hands its state on, and may be given another's."""
    return math.ceil(epochs / PARTS)


def run_member(
    launch: Launch,
    settings: SettingValues,
    *,
    every: int,
    donor: Path | None,
    prepare_with: Callable[[Launch], Prepared],
    hand_on: Callable[[Epoch, Path], None],
) -> None:
    """Runs a trial of the population; see :func:`tune.trials.run_trial`.

    Args:
        launch: the trial's.
        settings: what it tries, by dotted name.
        every: epochs between two states.
        donor: a folder that ``hand_on`` was given by this or another trial, to go on from.
        prepare_with: makes it ready to start.
        hand_on: is given an epoch's event, and a folder with its state, gone afterwards.
    """
    launch = replace(launch, fusion_checkpoint=every)
    run_dir = launch.output_dir / str(launch.name)
    schedule = _schedule(run_dir.name, settings, donor)
    if donor:
        _change(run_dir, launch, settings)

    def prepare(launch: Launch) -> Prepared:
        if donor:
            _states(run_dir / CHECKPOINTS).adopt(STAGE, _states(donor))
        return prepare_with(launch)

    def listen(event: Event) -> None:
        # Not of the last epoch: then the run is not over.
        if not is_epoch(event) or event.epoch % every or event.epoch == event.epochs:
            return
        with TemporaryDirectory() as folder:
            shutil.copy(_states(run_dir / CHECKPOINTS).path(STAGE), folder)
            write_json(Path(folder) / ORIGIN, {"epoch": event.epoch, "schedule": schedule})
            hand_on(event, Path(folder))

    run_trial(launch, settings, listen, prepare_with=prepare)
    write_json(run_dir / SCHEDULE, schedule)


def _schedule(trial: str, settings: SettingValues, donor: Path | None) -> list[JsonObject]:
    """Which trial's fit went through which epochs under which settings, up to this one's."""
    done, schedule = 0, list[JsonObject]()
    if donor:
        origin = json.loads((donor / ORIGIN).read_text())
        done, schedule = origin["epoch"], origin["schedule"]
    if schedule and schedule[-1]["settings"] == settings:
        return schedule
    return [*schedule, {"epoch": done + 1, "trial": trial, "settings": dict(settings)}]


def _change(run_dir: Path, launch: Launch, settings: SettingValues) -> None:
    """Makes a trial's directory that of other settings; the events so far stay."""
    if json.loads((run_dir / SETTINGS).read_text()) != settings:
        (run_dir / RESULT).unlink(missing_ok=True)
        write_configuration(run_dir / "config.yaml", launch.run)


def _states(folder: Path) -> Checkpoints:
    return Checkpoints(folder, every=1)
