"""A sweep's final comparison: best and default configuration on the test split, over seeds."""

from dataclasses import asdict, dataclass
from statistics import mean, stdev

from cluster.hardware.inventory import Inventory
from cluster.run.options import Launch
from cluster.run.prepare import prepare
from fl.json_values import JsonObject, SettingValues
from tune.trials import DEFAULT, derive, run_trial

BEST = "best"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Values over seeds, their mean, and their standard deviation (None for one value)."""

    values: tuple[float, ...]
    mean: float
    std: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Test accuracies with the same seeds, and their differences seed by seed."""

    default: Spread
    best: Spread
    gain: Spread

    def as_dict(self) -> JsonObject:
        """For ``result.json``."""
        return asdict(self)


def compare(
    launch: Launch, settings: SettingValues, inventory: Inventory, *, seeds: int
) -> Comparison:
    """Runs both configurations with each seed, from the launch's on, on all training images.

    Args:
        launch: the sweep's.
        settings: the best; empty if that is the default, which is then run only once per seed.
        inventory: what they run on.
        seeds: how many.
    """

    def accuracy(changes: SettingValues, label: str, seed: int) -> float:
        changes = {**changes, "seed": seed}
        own = derive(launch, changes, f"{launch.name}/final/{label}-seed{seed}")
        result = run_trial(
            own, changes, prepare_with=lambda run: prepare(run, inventory), report=True
        )
        return float(result["accuracy"])

    accuracies = {
        label: tuple(accuracy(changes, label, launch.run.seed + i) for i in range(seeds))
        for label, changes in ((DEFAULT, {}), (BEST, settings))
        if changes or label == DEFAULT
    }
    default = accuracies[DEFAULT]
    best = accuracies.get(BEST, default)
    gains = tuple(b - d for b, d in zip(best, default, strict=True))
    return Comparison(default=spread(default), best=spread(best), gain=spread(gains))


def spread(values: tuple[float, ...]) -> Spread:
    """Mean and sample standard deviation."""
    std = stdev(values) if len(values) > 1 else None
    return Spread(values=values, mean=mean(values), std=std)
