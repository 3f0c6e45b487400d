"""Ray Tune's searchers and schedulers, and our distributions in its words."""

import random
from functools import partial
from typing import Any

from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher

from fl.json_values import JsonObject, SettingValues
from fl.seeding import seed_for
from fl.spaces import Choice, Distribution, Integers, LogUniform, Space
from tune.options import METRICS, SweepOptions
from tune.population import interval

REDUCTION = 3
"""ASHA lets one in so many go on past each of its rungs."""


def param_space(space: Space, search: str) -> JsonObject:
    """The space as Tune samples it."""
    if search == "grid":
        return {name: tune.grid_search(list(d.grid)) for name, d in space.items()}
    return {name: _domain(distribution) for name, distribution in space.items()}


def _domain(distribution: Distribution) -> Any:
    if isinstance(distribution, Choice):
        return tune.choice(list(distribution.values))
    if isinstance(distribution, Integers):
        return tune.randint(distribution.low, distribution.high + 1)
    if isinstance(distribution, LogUniform):
        return tune.loguniform(distribution.low, distribution.high)
    return tune.uniform(distribution.low, distribution.high)


def make_searcher(options: SweepOptions, seed: int) -> Searcher | SearchAlgorithm:
    """What proposes settings; the same seed proposes the same."""
    how: Any = {"metric": options.metric, "mode": METRICS[options.metric]}
    if options.search == "optuna":
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return OptunaSearch(seed=seed, **how)
    if options.search == "hyperopt":
        from ray.tune.search.hyperopt import HyperOptSearch

        return HyperOptSearch(random_state_seed=seed, **how)
    return BasicVariantGenerator(random_state=seed)


def make_scheduler(
    options: SweepOptions, epochs: int, changing: Space, seed: int
) -> TrialScheduler:
    """What stops trials, or has them go on from another's state.

    Args:
        options: the sweep's.
        epochs: of the longest fit among the trials.
        changing: the part of the space that pbt changes; not empty then.
        seed: of pbt's own draws.
    """
    if options.scheduler == "fifo":
        return FIFOScheduler()
    if options.scheduler == "pbt":
        random.seed(seed_for(seed, "sweep/pbt"))  # Tune draws from the global stream
        return PopulationBasedTraining(
            time_attr="epoch",
            metric=options.metric,
            mode=METRICS[options.metric],
            perturbation_interval=interval(epochs),
            hyperparam_mutations={name: _steps(d) for name, d in changing.items()},
            resample_probability=0.0,
            custom_explore_fn=partial(_within, changing),
            log_config=False,
        )
    return ASHAScheduler(
        time_attr="epoch",
        metric=options.metric,
        mode=METRICS[options.metric],
        # At its own last step a trial is told to stop, and would not write its result.
        max_t=epochs + 1,
        grace_period=max(1, epochs // REDUCTION**2),
        reduction_factor=REDUCTION,
    )


def _steps(distribution: Distribution) -> Any:
    """What pbt steps along: the neighbour in a list, or a fifth more or less of a number."""
    return list(distribution.values) if isinstance(distribution, Choice) else _domain(distribution)


def _within(space: Space, settings: SettingValues) -> JsonObject:
    """The settings with those that left their range at its end."""
    ends = {n: (d.low, d.high) for n, d in space.items() if not isinstance(d, Choice)}
    return {
        name: min(max(value, ends[name][0]), ends[name][1]) if name in ends else value
        for name, value in settings.items()
    }
