"""In which order waiting clients are offered a slot: the longest first, unless something is scarce.

No placement takes less than the longest client's own time, nor less than the time that the scarcest
kind of capacity (cores, GPUs or memory) needs for all that is requested of it. Where the longest
client decides, the longest goes first. Where the scarcest kind decides, clients that request it go
before those that do not: if long clients without a GPU filled the cores, the GPUs would idle. A
client that takes as long by itself as all that is requested of the scarcest kind is as urgent.

Clients of one model that ask for the same differ in their work alone, so their order among
themselves is the same whatever is learned of rates. They are kept sorted, and finding the next
client takes time with the number of such groups, not with that of clients.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import merge
from math import inf
from statistics import fmean

from cluster.scheduling.capacity import Bundle, Need, spread_evenly
from fl.federation import Request


class Rates:
    """Seconds per unit of work, by model.

    What has been measured in this run replaces the prior as soon as the first client of a model
    is done: a prior comes from a step or two, on a machine that was idle.
    """

    def __init__(self, prior: Mapping[str, float]) -> None:
        self._prior = dict(prior)
        self._work, self._seconds = defaultdict[str, float](float), defaultdict[str, float](float)

    def learn(self, model: str, work: float, seconds: float) -> None:
        """Counts a finished client: the rate is all its model's seconds over all its work."""
        self._work[model] += work
        self._seconds[model] += seconds

    def rate(self, model: str) -> float:
        """Measured, else the prior, else the mean of the other models', else 1."""
        current = self.current
        if model in current:
            return current[model]
        return fmean(current.values()) if current else 1.0

    @property
    def current(self) -> dict[str, float]:
        """Measured rates, and priors for the other models."""
        measured = {m: self._seconds[m] / w for m, w in self._work.items() if w > 0}
        return self._prior | measured


@dataclass(frozen=True, slots=True)
class Entry:
    """A client as the placement knows it."""

    client: int
    request: Request
    need: Need
    model: str
    work: float


class Group:
    """Waiting clients of one model and one need."""

    def __init__(self, need: Need, model: str) -> None:
        self.need, self.model = need, model
        self.total: int | Fraction = 0
        """Their work together, exactly: so it does not depend on who came and went."""
        self.members: list[tuple[float, int]] = []
        """Work and negative id of each, sorted: the last one goes first."""

    def add(self, entry: Entry) -> None:
        """Adds a client that waits."""
        insort(self.members, (entry.work, -entry.client))
        self.total += _exactly(entry.work)

    def remove(self, entry: Entry) -> None:
        """Removes a client."""
        del self.members[bisect_left(self.members, (entry.work, -entry.client))]
        self.total -= _exactly(entry.work)


class Queue(dict[int, Entry]):
    """All clients that wait, by id, and in groups."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[tuple[Need, str], Group] = {}

    def add(self, entry: Entry) -> None:
        """Lets a client wait."""
        self[entry.client] = entry
        kind = entry.need, entry.model
        if kind not in self._groups:
            self._groups[kind] = Group(*kind)
        self._groups[kind].add(entry)

    def remove(self, client: int) -> None:
        """The client waits no longer."""
        entry = self.pop(client)
        group = self._groups[entry.need, entry.model]
        group.remove(entry)
        if not group.members:
            del self._groups[entry.need, entry.model]

    def walk(
        self,
        rate: Callable[[str], float],
        bundles: Sequence[Bundle],
        now: float,
        latest: Mapping[Need, float],
    ) -> Iterator[Entry]:
        """The clients by urgency, equally long ones by id.

        Args:
            rate: a model's seconds per unit of work.
            bundles: where there is capacity.
            now: when a client begins that starts now.
            latest: those with such a need who would end later are passed over; what is added to it
                on the way holds for the clients that follow.
        """
        groups = list(self._groups.values())
        rates = [rate(group.model) for group in groups]
        seconds = [float(g.total) * r for g, r in zip(groups, rates, strict=True)]
        kinds = spread_evenly(bundles, [(g.need, s) for g, s in zip(groups, seconds, strict=True)])
        scarcest = max(range(len(kinds)), key=kinds.__getitem__)

        def ranks(own: Group, rate: float) -> Iterator[tuple[bool, float, int]]:
            """Of each client in turn: whether it is not urgent, minus its seconds, and its id."""
            asks, left = own.need[scarcest] > 0, len(own.members)
            while left:
                work, negative = own.members[left - 1]
                takes = work * rate
                yield not (asks or takes >= kinds[scarcest]), -takes, -negative
                left -= 1
                if own.need in latest:
                    end = latest[own.need]
                    left = bisect_right(own.members, end, hi=left, key=lambda m: now + m[0] * rate)

        for _, minus, client in merge(*map(ranks, groups, rates)):
            entry = self[client]  # which another of its need may have ruled out meanwhile
            if now - minus <= latest.get(entry.need, inf):
                yield entry


def _exactly(work: float) -> int | Fraction:
    """Whole numbers add up exactly by themselves, in a tenth of the time."""
    return work if isinstance(work, int) else Fraction(work)
