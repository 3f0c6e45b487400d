"""Makes Ray Tune's searchers, schedulers and parameter space from a sweep's options and space."""

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
"""ASHA lets one in so many trials continue past each of its rungs."""


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
    """The searcher, which proposes settings; the same seed gives the same ones."""
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
    """The scheduler, which stops trials, or has them continue from another's state.

    Args:
        options: the sweep's.
        epochs: those of the longest fit among the trials.
        changing: the part of the space that pbt changes, not empty for pbt.
        seed: seed of pbt's own draws.
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
            custom_explore_fn=partial(within, changing),
            log_config=False,
        )
    return ASHAScheduler(
        time_attr="epoch",
        metric=options.metric,
        mode=METRICS[options.metric],
        # At max_t Tune stops a trial, which would then not write its result: so one more.
        max_t=epochs + 1,
        grace_period=max(1, epochs // REDUCTION**2),
        reduction_factor=REDUCTION,
    )


def _steps(distribution: Distribution) -> Any:
    """How pbt changes a value: to a list's neighbour, or a number by a fifth up or down."""
    return list(distribution.values) if isinstance(distribution, Choice) else _domain(distribution)


def within(space: Space, settings: SettingValues) -> JsonObject:
    """The settings, with values outside of their range moved to its end."""
    ends = {n: (d.low, d.high) for n, d in space.items() if not isinstance(d, Choice)}
    return {
        name: min(max(value, ends[name][0]), ends[name][1]) if name in ends else value
        for name, value in settings.items()
    }
