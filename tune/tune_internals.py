"""Internals of Ray Tune that we use, which may change with any release.

- A trial continues from the path in its checkpoint, even if that was changed: there is no public
  way to set the path of a trial's state.
- A trial's id ends with its number in the sweep: Tune states it nowhere else.
- The function that counts callbacks for Ray's statistics of usage: it imports MLflow and Weights &
  Biases where they are installed, which takes seconds, even where nothing is sent.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray.air._internal import usage
from ray.tune.experiment import Trial

TESTED_WITH = "2.60.0"
"""The version that tests/tune/test_tune_internals.py last checked this file with."""


def state_of(trial: Trial) -> Path | None:
    """The state from which Tune will have the trial continue, its own or another's."""
    return Path(trial.checkpoint.path) if trial.checkpoint else None


def go_on_from(trial: Trial, state: Path) -> None:
    """Has the trial continue from the state at this path, if it has a state at all."""
    if trial.checkpoint:
        trial.checkpoint.path = str(state)


def number_in(trial_id: str) -> str:
    """A trial's number in the sweep, with leading zeros; the whole id if it has none."""
    return trial_id.rpartition("_")[2]


@contextlib.contextmanager
def callbacks_not_counted() -> Iterator[None]:
    """Leaves out the count of callbacks for Ray's statistics of usage."""

    def nothing(callbacks: Any) -> bool:
        return False

    own = usage.tag_callbacks
    usage.tag_callbacks = nothing
    try:
        yield
    finally:
        usage.tag_callbacks = own
