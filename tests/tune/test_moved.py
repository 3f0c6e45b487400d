"""A sweep that was moved goes on from states in its new folder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.tune import Checkpoint

from tune.moved import Moved
from tune.tune_internals import state_of


def trial(home: Path, state: Path | None) -> Any:
    checkpoint = Checkpoint(str(state)) if state else None
    return SimpleNamespace(checkpoint=checkpoint, remote_experiment_path=str(home))


def test_states_of_other_trials_are_looked_for_where_the_sweep_is_now() -> None:
    before, now = Path("/here/ray/trials"), Path("/there/ray/trials")
    one = Path("00002", "checkpoint_000000")
    trials = [trial(now, before / one), trial(now, now / one), trial(now, None)]
    Moved().on_step_begin(1, trials)
    assert [state_of(t) for t in trials] == [now / one, now / one, None]
