"""What Tune's searchers and schedulers are told: where to look, and when to stop."""

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray import tune
from ray.tune.experiment import Experiment, Trial
from ray.tune.schedulers import TrialScheduler

from fl.spaces import Choice, Integers, LogUniform, Uniform
from tune.options import SweepOptions
from tune.tuning import make_scheduler, make_searcher, param_space

SPACE = {"keep": Uniform(0.4, 1.0), "lam": Choice((0.3, 0.6))}


def test_samples_lie_in_the_space() -> None:
    space = {"a": Uniform(0, 1), "b": LogUniform(1e-3, 1), "c": Integers(2, 4), "d": Choice((5, 6))}
    domains = param_space(space, "random")
    drawn = {name: domain.sample(size=300) for name, domain in domains.items()}
    assert all(0 <= a <= 1 for a in drawn["a"])
    assert all(1e-3 <= b <= 1 for b in drawn["b"])
    assert min(drawn["b"]) < 0.01  # a tenth of the range in size, two thirds of it in ratio
    assert set(drawn["c"]) == {2, 3, 4}
    assert set(drawn["d"]) == {5, 6}


def test_a_grid_search_tries_each_point_once() -> None:
    assert param_space(SPACE, "grid") == {
        "keep": {"grid_search": [0.4, 0.7, 1.0]},
        "lam": {"grid_search": [0.3, 0.6]},
    }


def proposed(seed: int, count: int = 5) -> list[dict[str, Any]]:
    """The settings of the first trials of a random search."""
    tune.register_trainable("nothing", lambda _: None)
    search: Any = make_searcher(SweepOptions(), seed)
    how = {"config": param_space(SPACE, "random"), "num_samples": count}
    search.add_configurations([Experiment("any", "nothing", **how)])
    return [search.next_trial().config for _ in range(count)]


def test_the_same_seed_tries_the_same_settings() -> None:
    assert proposed(3) == proposed(3)
    assert proposed(3) != proposed(4)


def decisions(scheduler: TrialScheduler, *told: dict[str, float]) -> list[str]:
    """What the scheduler decides on trials that report these figures, one after the other."""
    controller: Any = None
    trials = [Trial("any", stub=True) for _ in told]
    for trial in trials:
        scheduler.on_trial_add(controller, trial)
    pairs = zip(trials, told, strict=True)
    return [str(scheduler.on_trial_result(controller, trial, result)) for trial, result in pairs]


@settings(deadline=None)
@given(st.integers(1, 200))
def test_asha_lets_a_trial_that_leads_come_to_its_end(epochs: int) -> None:
    """At its last epoch too, else it would not write its result."""
    asha = make_scheduler(SweepOptions(scheduler="asha"), epochs)
    trial, controller = Trial("any", stub=True), cast(Any, None)
    asha.on_trial_add(controller, trial)
    for epoch in range(1, epochs + 1):
        decided = asha.on_trial_result(controller, trial, {"epoch": epoch, "accuracy": 0.5})
        assert decided == TrialScheduler.CONTINUE


@pytest.mark.parametrize(
    ("name", "metric", "better", "worse"),
    [("asha", "accuracy", 0.9, 0.1), ("asha", "loss", 0.1, 2), ("fifo", "accuracy", 0.9, 0.1)],
)
def test_asha_alone_stops_those_that_fall_behind(
    name: str, metric: str, better: float, worse: float
) -> None:
    scheduler = make_scheduler(SweepOptions(scheduler=name, metric=metric), 9)
    *leading, last = decisions(
        scheduler, *({"epoch": 1, metric: value} for value in (better, better, better, worse))
    )
    assert set(leading) == {TrialScheduler.CONTINUE}
    assert last == (TrialScheduler.STOP if name == "asha" else TrialScheduler.CONTINUE)
