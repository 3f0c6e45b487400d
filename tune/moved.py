"""Where a sweep's states lie now, after its folder was moved."""

from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from tune.tune_internals import go_on_from, state_of


class Moved(tune.Callback):
    """Has each trial go on from where its state lies now.

    Of a folder that was moved, Tune changes the paths of a trial's own states, but not of another
    trial's, from which pbt has told it to go on: that one it would look for in the old place.
    """

    def on_step_begin(self, iteration: int, trials: list[Trial], **_: Any) -> None:
        """Before Tune starts any trial."""
        for trial in trials:
            state = state_of(trial)
            if state is None:
                continue
            of_trial = state.parts[-2:]  # its folder, and in it the state's
            now = Path(trial.remote_experiment_path).joinpath(*of_trial)
            if now != state:
                go_on_from(trial, now)
