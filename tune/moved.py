"""Where a sweep's states lie now, after its folder was moved."""

from pathlib import Path
from typing import Any

from ray import tune


class Moved(tune.Callback):
    """Has each trial go on from where its state lies now.

    Of a folder that was moved, Tune changes the paths of a trial's own states, but not of another
    trial's, from which pbt has told it to go on: that one it would look for in the old place.
    """

    def on_step_begin(self, iteration: int, trials: list[Any], **_: Any) -> None:
        """Before Tune starts any trial."""
        for trial in trials:
            state = trial.run_metadata.checkpoint_manager.latest_checkpoint_result
            if state is None:
                continue
            of_trial = Path(state.checkpoint.path).parts[-2:]  # its folder, and in it the state's
            now = Path(trial.storage.experiment_fs_path).joinpath(*of_trial)
            if now != Path(state.checkpoint.path):
                state.checkpoint = tune.Checkpoint(str(now))
