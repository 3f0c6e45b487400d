"""Makes Ray Tune's searchers, schedulers and parameter space from a sweep's options and space."""

from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher

from fl.json_values import JsonObject
from fl.spaces import Choice, Distribution, Integers, LogUniform, Space
from tune.options import METRICS, SweepOptions

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


def make_scheduler(options: SweepOptions, epochs: int) -> TrialScheduler:
    """The scheduler, which may stop trials; ``epochs``: of the longest fit among them."""
    if options.scheduler == "fifo":
        return FIFOScheduler()
    return ASHAScheduler(
        time_attr="epoch",
        metric=options.metric,
        mode=METRICS[options.metric],
        # At max_t Tune stops a trial, which would then not write its result: so one more.
        max_t=epochs + 1,
        grace_period=max(1, epochs // REDUCTION**2),
        reduction_factor=REDUCTION,
    )
