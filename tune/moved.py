"""Corrects the paths of a sweep's states after the sweep's folder was moved."""

from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from tune.tune_internals import go_on_from, state_of


class Moved(tune.Callback):
    """Has each trial continue from its state's present path.

    For a moved folder, Tune corrects the paths of a trial's own states, but not that of another
    trial's state from which pbt lets it continue: it would look for that one at the old path.
    """

    def on_step_begin(self, iteration: int, trials: list[Trial], **_: Any) -> None:
        """Corrects all trials' paths before Tune starts any trial."""
        for trial in trials:
            state = state_of(trial)
            if state is None:
                continue
            of_trial = state.parts[-2:]  # the trial's folder, and the state's folder in it
            now = Path(trial.remote_experiment_path).joinpath(*of_trial)
            if now != state:
                go_on_from(trial, now)
