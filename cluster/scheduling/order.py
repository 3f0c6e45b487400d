"""In which order waiting clients are offered a slot: the longest first, unless something is scarce.

No placement takes less than the longest client's own time, nor less than the time that the scarcest
kind of capacity (cores, GPUs or memory) needs for all that is requested of it. Where the longest
client decides, the longest goes first. Where the scarcest kind decides, clients that request it go
before those that do not, longest first among either: if long clients without a GPU filled the
cores, the GPUs would idle meanwhile, and the clients that need them would end too late. A client
that takes as long by itself as all that is requested of the scarcest kind is as urgent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.scheduling.bound import spread_evenly
from cluster.scheduling.capacity import Bundle, Need


@dataclass(frozen=True)
class Waiting:
    """A client that waits, and the seconds that it is expected to take."""

    client: int
    need: Need
    seconds: float


def in_order(waiting: Iterable[Waiting], bundles: Sequence[Bundle]) -> list[int]:
    """The clients, the most urgent first; equally long ones by id."""
    waiting = list(waiting)
    kinds = spread_evenly(bundles, [(w.need, w.seconds) for w in waiting])
    scarcest = max(range(len(kinds)), key=kinds.__getitem__)

    def rank(w: Waiting) -> tuple[bool, float, int]:
        urgent = w.need[scarcest] > 0 or w.seconds >= kinds[scarcest]
        return not urgent, -w.seconds, w.client

    return [w.client for w in sorted(waiting, key=rank)]
