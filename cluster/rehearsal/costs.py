"""What was measured in a rehearsal, extended to the whole run: seconds and memory by phase."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from fl.events import Event, Phase, RoundEnd

CLIENTS, PREPARATION, FUSION, TEST = "clients", "preparation", "fusion", "test"
PHASES = {
    CLIENTS: "clients",
    PREPARATION: "server: preparation",
    FUSION: "server: fusion",
    TEST: "test",
}
"""What a table calls them. Preparation is all that the server does before it trains a model:
sampling, filter, teachers' answers, images made from models, clusters of clients."""
OWN = "rehearsed: "
"""How the names of phases begin that count their costs themselves."""
ELSEWHERE = ("local", "scoring")
"""Phases whose costs the executor counts, client by client."""


@dataclass(frozen=True)
class Cost:
    """A phase of the whole run."""

    seconds: float
    peak_bytes: int


class Costs:
    """Costs by round and phase.

    Args:
        loops: how often the whole run passes through what a phase of that name did once.
        once: phases that happen in one round alone, whichever is rehearsed.
    """

    def __init__(self, loops: Mapping[str, float], once: frozenset[str] = frozenset()) -> None:
        self._loops = dict(loops)
        self._once = once
        self._round = 1
        self._seconds: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._peaks: dict[str, int] = defaultdict(int)

    def add(self, phase: str, seconds: float, peak_bytes: int | None = None) -> None:
        """Adds seconds of the whole run's present round, and a peak of memory."""
        number = 1 if phase in self._once else self._round
        self._seconds[number][phase] += seconds
        self._peaks[phase] = max(self._peaks[phase], peak_bytes or 0)

    def repeat(self, name: str, times: float) -> None:
        """Says that the whole run passes so often as often through phases of that name."""
        self._loops[name] = self._loops.get(name, 1.0) * times

    def __call__(self, event: Event) -> None:
        """Counts what the method does itself, by the phases that it names."""
        if isinstance(event, RoundEnd):
            self._round += 1
        elif isinstance(event, Phase) and event.took is not None:
            self._count(event.phase, event.took)

    def _count(self, name: str, seconds: float) -> None:
        if not name.startswith(OWN) and name not in ELSEWHERE:
            phase = FUSION if name == "fusion" else PREPARATION
            self.add(phase, seconds * self._loops.get(name, 1.0))

    def whole(self, rounds: int) -> dict[str, Cost]:
        """The costs of so many rounds by phase: the first, and the others as the last one was."""
        last = max(self._seconds, default=1)
        found = {}
        for phase in PHASES:
            seconds = self._seconds[1][phase] + (rounds - 1) * self._seconds[last][phase]
            if last == 1 and phase in self._once:
                seconds = self._seconds[1][phase]
            found[phase] = Cost(seconds, self._peaks[phase])
        return found

    def of_round(self) -> float:
        """Seconds of the last round that was rehearsed."""
        return sum(self._seconds[max(self._seconds, default=1)].values())
