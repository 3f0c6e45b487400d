"""The settings of differential privacy, and the noise that a budget needs, by Opacus' accountant.

A client's upload is (epsilon, delta)-differentially private towards each of its samples, added or
removed, by DP-SGD (Abadi et al., CCS 2016): :mod:`fl.training.private`.
"""

import math
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Annotated

from fl.bounds import Positive, Settings, Within
from fl.errors import UserError

ACCOUNTANT = "rdp"
"""Renyi differential privacy, an upper bound on what is spent. Opacus' PRV accountant is tighter,
and took too long to wait for when it was tried."""


@dataclass(frozen=True, kw_only=True)
class DpConfig(Settings):
    """Local training of classifiers and generators with differential privacy (DP-SGD)."""

    epsilon: Positive | None = None
    """Budget of each client over all rounds, for each of its samples. Default: no privacy."""
    delta: Annotated[float, Within(0, 1, "()")] = 1e-5
    """Probability with which epsilon may not hold; far below one over a client's samples."""
    clip: Positive = 1.0
    """Norm to which the gradient of each sample is cut."""
    noise_from_seed: bool = False
    """Draw noise and batches from the seed, to repeat a run bit by bit, as tests do: who knows the
    seed, which config.yaml names, can take the noise off, so nothing is private. Default: from the
    operating system; the same seed then gives another model each time."""

    def check_further(self) -> None:
        """The accountant's package is there, if it is needed."""
        if self.epsilon is not None and find_spec("opacus") is None:
            raise UserError("dp.epsilon needs Opacus: pip install 'onefold[dp]'")


@dataclass(frozen=True)
class Sampling:
    """How often a sample takes part: each step takes it with probability ``rate``."""

    rate: float
    steps: int

    @classmethod
    def of(cls, num_samples: int, batch_size: int, epochs: int) -> "Sampling":
        """Poisson batches of ``batch_size`` samples on average, as many steps as there are batches
        in so many epochs."""
        rate = min(1.0, batch_size / num_samples)
        return cls(rate, epochs * math.ceil(num_samples / batch_size))


@cache
def noise_for(epsilon: float, delta: float, sampling: Sampling) -> tuple[float, float]:
    """The noise multiplier that keeps to the budget, and the epsilon that is then spent.

    Raises:
        UserError: no amount of noise that training could survive does.
    """
    from opacus.accountants import create_accountant
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the largest: a looser bound
        try:
            noise = get_noise_multiplier(
                target_epsilon=epsilon,
                target_delta=delta,
                sample_rate=sampling.rate,
                steps=sampling.steps,
                accountant=ACCOUNTANT,
                epsilon_tolerance=min(0.01, epsilon / 100),
            )
        except ValueError as error:
            raise UserError(f"dp.epsilon {epsilon:g} with delta {delta:g}: {error}") from None
        accountant = create_accountant(mechanism=ACCOUNTANT)
        accountant.history = [(noise, sampling.rate, sampling.steps)]
        return noise, float(accountant.get_epsilon(delta=delta))
