"""Population-based training (pbt): trials continue from another trial's state, with other settings.

Tune passes checkpoints from trial to trial: the state of the server's fit, and the schedule of
settings behind it. A trial that takes a checkpoint takes its settings too, all but those that pbt
changes: the settings that made the samples and the model stay as they were when the fit began.
"""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster.run.options import Launch
from cluster.run.prepare import Prepared
from cluster.run.runner import CHECKPOINTS
from fl.events import Epoch, Event
from fl.fusion.checkpoints import Checkpoints
from fl.json_files import read_json, read_json_if_whole, write_json
from fl.json_values import JsonObject, SettingValues
from tune.folder import write_configuration
from tune.rows import is_epoch
from tune.trials import RESULT, SCHEDULE, SETTINGS, run_trial

PARTS = 5
"""Parts of the longest fit, at most; after each a trial may continue from another's state."""
STAGE = "fusion"
"""The fit that gives a method's result."""
ORIGIN = "origin.json"
"""File beside a state that is passed on: its epoch, and the schedule behind it."""


def interval(epochs: int) -> int:
    """Epochs of a fit after which a trial passes its state on, and may be given another's."""
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
        donor: a folder that this or another trial gave to ``hand_on``, to continue from.
        prepare_with: makes the trial ready to start.
        hand_on: called with an epoch's event and a folder with its state, deleted afterwards.
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
        # Not after the last epoch, when the run is not over yet.
        if not is_epoch(event) or event.epoch % every or event.epoch == event.epochs:
            return
        with TemporaryDirectory() as folder:
            shutil.copy(_states(run_dir / CHECKPOINTS).path(STAGE), folder)
            write_json(Path(folder) / ORIGIN, {"epoch": event.epoch, "schedule": schedule})
            hand_on(event, Path(folder))

    run_trial(launch, settings, listen, prepare_with=prepare)
    write_json(run_dir / SCHEDULE, {"schedule": schedule})


def _schedule(trial: str, settings: SettingValues, donor: Path | None) -> list[JsonObject]:
    """From which epoch on the fit ran in which trial with which settings, up to this trial."""
    done, schedule = 0, list[JsonObject]()
    if donor:
        origin = read_json(donor / ORIGIN)
        done, schedule = origin["epoch"], origin["schedule"]
    if schedule and schedule[-1]["settings"] == settings:
        return schedule
    return [*schedule, {"epoch": done + 1, "trial": trial, "settings": dict(settings)}]


def _change(run_dir: Path, launch: Launch, settings: SettingValues) -> None:
    """Changes the settings in a trial's directory; its events so far stay."""
    if read_json_if_whole(run_dir / SETTINGS) != settings:
        (run_dir / RESULT).unlink(missing_ok=True)
        write_configuration(run_dir / "config.yaml", launch.run)


def _states(folder: Path) -> Checkpoints:
    return Checkpoints(folder, every=1)
