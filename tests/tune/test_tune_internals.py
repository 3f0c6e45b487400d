"""What we use of Tune's internals: where a trial's state is, and its number."""

from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray.air._internal import usage
from ray.tune.experiment import Experiment

from tests.contracts import contract
from tune.tune_internals import TESTED_WITH, callbacks_not_counted, number_in
from tune.tuning import ENVIRONMENT


def test_a_trials_id_ends_with_its_number() -> None:
    tune.register_trainable("nothing", lambda _: None)
    search = tune.search.BasicVariantGenerator()
    with contract("ray", "Trial.trial_id", TESTED_WITH):
        search.add_configurations([Experiment("any", "nothing", num_samples=2)])
        trials = [search.next_trial() for _ in range(2)]
        assert [number_in(t.trial_id) for t in trials if t] == ["00000", "00001"]


def test_no_tracker_is_imported_to_count_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune counts them by importing MLflow and Weights & Biases."""
    counted: list[Any] = []
    monkeypatch.setattr(usage, "_count_callbacks", lambda given: counted.append(given) or {})
    callbacks = [tune.Callback()]
    with contract("ray", "ray.tune.tune calls usage.tag_callbacks", TESTED_WITH):
        assert "air_usage.tag_callbacks(callbacks)" in Path(tune.tune.__file__).read_text()
        usage.tag_callbacks(callbacks)
        assert len(counted) == 1
    with callbacks_not_counted():
        usage.tag_callbacks(callbacks)
    assert len(counted) == 1
    usage.tag_callbacks(callbacks)
    assert len(counted) == 2


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_environment_variables_are_still_read(name: str) -> None:
    folder = Path(ray.__file__).parent
    with contract("ray", f"environment variable {name}", TESTED_WITH):
        files = [*folder.glob("tune/**/*.py"), *folder.glob("train/*.py")]
        assert any(f'"{name}"' in file.read_text() for file in files)
