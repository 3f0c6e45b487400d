"""What we use of Tune that it does not promise: a trial's number, and environment variables."""

from pathlib import Path

import pytest
import ray
from ray import tune
from ray.tune.experiment import Experiment

from tests.contracts import contract
from tune.tune_internals import TESTED_WITH, number_in
from tune.tuning import ENVIRONMENT


def test_a_trials_id_ends_with_its_number() -> None:
    tune.register_trainable("nothing", lambda _: None)
    search = tune.search.BasicVariantGenerator()
    with contract("ray", "Trial.trial_id", TESTED_WITH):
        search.add_configurations([Experiment("any", "nothing", num_samples=2)])
        trials = [search.next_trial() for _ in range(2)]
        assert [number_in(t.trial_id) for t in trials if t] == ["00000", "00001"]


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_environment_variables_are_still_read(name: str) -> None:
    folder = Path(ray.__file__).parent
    with contract("ray", f"environment variable {name}", TESTED_WITH):
        files = [*folder.glob("tune/**/*.py"), *folder.glob("train/*.py")]
        assert any(f'"{name}"' in file.read_text() for file in files)
