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

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
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
        self._members: list[tuple[float, int]] = []
        self._sorted = True

    def add(self, entry: Entry) -> None:
        """Adds a client that waits."""
        self._members.append((entry.work, -entry.client))
        self._sorted = False
        self.total += _exactly(entry.work)

    def remove(self, entry: Entry) -> None:
        """Removes a client."""
        del self.members[bisect_left(self.members, (entry.work, -entry.client))]
        self.total -= _exactly(entry.work)

    @property
    def members(self) -> list[tuple[float, int]]:
        """Work and negative id of each, sorted: the last one goes first."""
        if not self._sorted:
            self._members.sort()
            self._sorted = True
        return self._members


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

    def walk(self, rate: Callable[[str], float], bundles: Sequence[Bundle]) -> "Walk":
        """The clients by urgency; ``rate``: a model's seconds per unit of work."""
        return Walk(self, list(self._groups.values()), rate, bundles)


class Walk(Iterator[Entry]):
    """Waiting clients, the most urgent first, equally long ones by id; some may be passed over."""

    def __init__(
        self,
        entries: Mapping[int, Entry],
        groups: Sequence[Group],
        rate: Callable[[str], float],
        bundles: Sequence[Bundle],
    ) -> None:
        self._entries, self._groups = entries, groups
        self._rates = [rate(group.model) for group in groups]
        seconds = [float(g.total) * r for g, r in zip(groups, self._rates, strict=True)]
        asked = [(g.need, s) for g, s in zip(groups, seconds, strict=True)]
        kinds = spread_evenly(bundles, asked)
        self._scarcest = max(range(len(kinds)), key=kinds.__getitem__)
        self._as_urgent = kinds[self._scarcest]
        self._heads: list[tuple[bool, float, int, int, int]] = []
        """Of each group the next client: rank (not urgent, minus seconds, id), group, position."""
        for number, group in enumerate(groups):
            self._push(number, len(group.members) - 1)
        self._last: tuple[int, int] | None = None
        """Group and position of the client that was given last."""

    def __next__(self) -> Entry:
        if self._last:
            number, position = self._last
            self._push(number, position - 1)
        if not self._heads:
            raise StopIteration
        _, _, client, number, position = heappop(self._heads)
        self._last = number, position
        return self._entries[client]

    def pass_need(self, need: Need) -> None:
        """Passes over all that ask for this."""
        self._heads = [head for head in self._heads if self._groups[head[3]].need != need]
        heapify(self._heads)
        if self._last and self._groups[self._last[0]].need == need:
            self._last = None

    def pass_longer(self, begin: float, end: float) -> None:
        """Of the group of the client that was given last, passes over all that would begin at
        ``begin`` and take longer than to ``end``."""
        assert self._last, "no client was given"
        number, position = self._last
        rate, members = self._rates[number], self._groups[number].members
        fitting = bisect_right(
            members, end, hi=position, key=lambda member: begin + member[0] * rate
        )
        self._last = number, fitting

    def _push(self, number: int, position: int) -> None:
        """Has the group's client at that position come next; none below 0."""
        if position >= 0:
            work, negative = self._groups[number].members[position]
            seconds = work * self._rates[number]
            urgent = self._groups[number].need[self._scarcest] > 0 or seconds >= self._as_urgent
            heappush(self._heads, (not urgent, -seconds, -negative, number, position))


def _exactly(work: float) -> int | Fraction:
    """Whole numbers add up exactly by themselves, in a tenth of the time."""
    return work if isinstance(work, int) else Fraction(work)
