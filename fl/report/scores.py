"""How the clients of one run did, each on samples of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev


@dataclass(frozen=True)
class Scores:
    """Every client's accuracy after the last round; at least one client has one."""

    by_client: Sequence[float | None]
    """None: the client was not scored."""

    @property
    def tested(self) -> dict[int, float]:
        """Accuracy by the id of each client that was scored."""
        return {k: accuracy for k, accuracy in enumerate(self.by_client) if accuracy is not None}

    @property
    def untested(self) -> list[int]:
        """Ids of the clients that were not scored."""
        return [k for k, accuracy in enumerate(self.by_client) if accuracy is None]

    @property
    def mean(self) -> float:
        """Over the clients that were scored."""
        return fmean(self.tested.values())

    @property
    def spread(self) -> float:
        """Standard deviation over these clients."""
        return pstdev(self.tested.values())

    @property
    def ranked(self) -> list[int]:
        """Their ids, the worst first."""
        tested = self.tested
        return sorted(tested, key=lambda k: (tested[k], k))

    @property
    def worst(self) -> list[int]:
        """Ids of their worst tenth, at least one."""
        ranked = self.ranked
        return ranked[: max(1, len(ranked) // 10)]

    @property
    def worst_tenth(self) -> float:
        """Mean over the worst tenth."""
        tested = self.tested
        return fmean(tested[k] for k in self.worst)

    def below(self, other: "Scores") -> list[int]:
        """Ids of the clients that do worse here than there, of those that both scored."""
        there = other.tested
        return [k for k, accuracy in self.tested.items() if k in there and accuracy < there[k]]


def scores_of(by_client: Sequence[float | None]) -> Scores | None:
    """The scores, or None where no client was scored."""
    return Scores(by_client) if any(a is not None for a in by_client) else None
