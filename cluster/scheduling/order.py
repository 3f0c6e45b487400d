"""In which order waiting clients are offered a seat: the longest first, unless something is scarce.

What no placement can undercut is either one client's own time, or the time that the scarcest kind
of capacity (cores, GPUs or memory) needs for all that is asked of it. In the first case the longest
goes first. In the second, those who ask for the scarcest kind go before those who ask for none of
it, longest first among either: were the cores full of long clients that want no GPU, the GPUs would
idle meanwhile, and all who want them would come too late. Whoever takes as long by itself as all
of that is as urgent.
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
