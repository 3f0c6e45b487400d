"""How long a unit of a model's work takes, learned from the clients that have finished."""

from collections.abc import Mapping
from statistics import fmean


class Rates:
    """Seconds per unit of work, by model.

    What has been measured in this run replaces the prior as soon as the first client of a model
    is done: a prior comes from a step or two, on a machine that was idle.
    """

    def __init__(self, prior: Mapping[str, float]) -> None:
        self._prior = dict(prior)
        self._work: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def learn(self, model: str, work: float, seconds: float) -> None:
        """Counts a finished client: the rate is all its model's seconds over all its work."""
        self._work[model] = self._work.get(model, 0.0) + work
        self._seconds[model] = self._seconds.get(model, 0.0) + seconds

    def rate(self, model: str) -> float:
        """Measured, else the prior, else the mean of the other models', else 1."""
        if self._work.get(model, 0) > 0:
            return self._seconds[model] / self._work[model]
        if model in self._prior:
            return self._prior[model]
        current = self.current
        return fmean(current.values()) if current else 1.0

    @property
    def current(self) -> dict[str, float]:
        """Measured rates, and priors for the other models."""
        measured = {m: self._seconds[m] / w for m, w in self._work.items() if w > 0}
        return self._prior | measured
