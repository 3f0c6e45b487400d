"""A sweep that was moved goes on from states in its new folder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.tune import Checkpoint

from tune.moved import Moved


def trial(home: Path, state: Path | None) -> Any:
    result = SimpleNamespace(checkpoint=Checkpoint(str(state))) if state else None
    manager = SimpleNamespace(latest_checkpoint_result=result)
    return SimpleNamespace(
        storage=SimpleNamespace(experiment_fs_path=str(home)),
        run_metadata=SimpleNamespace(checkpoint_manager=manager),
    )


def test_states_of_other_trials_are_looked_for_where_the_sweep_is_now() -> None:
    before, now = Path("/here/ray/trials"), Path("/there/ray/trials")
    one = Path("00002", "checkpoint_000000")
    trials = [trial(now, before / one), trial(now, now / one), trial(now, None)]
    Moved().on_step_begin(1, trials)
    states = [t.run_metadata.checkpoint_manager.latest_checkpoint_result for t in trials]
    assert [s and Path(s.checkpoint.path) for s in states] == [now / one, now / one, None]
