"""What we use of Ray Tune that Tune does not promise to keep.

- A trial goes on from the path in its checkpoint, also if that was changed: there is no public way
  to tell a trial where its state is.
- A trial's id ends with its number in the sweep: Tune gives it nowhere else.
"""

from pathlib import Path

from ray.tune.experiment import Trial

TESTED_WITH = "2.60.0"
"""The Ray that tests/tune/test_tune_internals.py last held against this file."""


def state_of(trial: Trial) -> Path | None:
    """The state from which Tune will have the trial go on, its own or another's."""
    return Path(trial.checkpoint.path) if trial.checkpoint else None


def go_on_from(trial: Trial, state: Path) -> None:
    """Has the trial go on from the state where it is now, if it has one at all."""
    if trial.checkpoint:
        trial.checkpoint.path = str(state)


def number_in(trial_id: str) -> str:
    """A trial's number in the sweep, with leading zeros; the whole id if it has none."""
    return trial_id.rpartition("_")[2]
