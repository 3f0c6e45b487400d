"""How well an attack's scores tell members from non-members: ROC curve, area, true positives."""

from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from fl.json_values import JsonObject

FALSE_POSITIVES = (0.001, 0.01)
"""False positive rates at which true positives are told."""
CURVE = np.geomspace(1e-3, 1, 31)
"""False positive rates of the curve that is kept."""


@dataclass(frozen=True)
class Rate:
    """A true positive rate with its 95 % interval (Clopper and Pearson), all from 0 to 1."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """What an attack can tell."""

    members: int
    others: int
    auc: float
    """Area under the ROC curve: 0.5 is a coin, 1 knows every member."""
    error: float
    """Standard error of the area (Hanley and McNeil, 1982)."""
    at: dict[str, Rate]
    """True positive rates by false positive rate. One below 1/others is met by accusing nobody but
    those above every non-member."""
    curve: list[float]
    """True positive rates at the false positive rates of :data:`CURVE`."""

    @classmethod
    def of(cls, members: np.ndarray, others: np.ndarray) -> Self:
        """The curve of scores, (n,) and (m,), neither empty, that are higher for likely members."""
        auc, n, m = _area(members, others), len(members), len(others)
        return cls(
            members=n,
            others=m,
            auc=auc,
            error=_error(auc, n, m),
            at={
                f"{rate:g}": _interval(_found(members, others, rate), n) for rate in FALSE_POSITIVES
            },
            curve=[_found(members, others, rate) / n for rate in CURVE],
        )

    def to_json(self) -> JsonObject:
        """As it stands in privacy.json."""
        return asdict(self)


def _area(members: np.ndarray, others: np.ndarray) -> float:
    """The share of pairs in which the member has the higher score; ties count half."""
    ordered = np.sort(others)
    below, upto = (np.searchsorted(ordered, members, side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / len(others))


def _error(auc: float, n: int, m: int) -> float:
    both, twice = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (n - 1) * (both - auc**2) + (m - 1) * (twice - auc**2)
    return float(np.sqrt(max(0.0, variance) / (n * m)))


def _found(members: np.ndarray, others: np.ndarray, rate: float) -> int:
    """Members above the lowest threshold that accuses no more than this share of the others."""
    allowed = int(rate * len(others) + 1e-9)
    if allowed >= len(others):
        return len(members)
    return int((members > np.sort(others)[::-1][allowed]).sum())


def _interval(found: int, n: int) -> Rate:
    from scipy.stats import beta  # late: it takes a second

    low = float(beta.ppf(0.025, found, n - found + 1)) if found else 0.0
    high = float(beta.ppf(0.975, found + 1, n - found)) if found < n else 1.0
    return Rate(found / n, low, high)
