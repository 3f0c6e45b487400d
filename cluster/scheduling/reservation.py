"""The reservation of the first client in line, so that others that pass it cannot starve it.

It names the slot that is expected to be free for the client soonest, the running clients of that
bundle that must leave first, and the moment at which the last of them is expected to end. Until
the client has started, another may start in that bundle only if it is expected to end by that
moment, or if there is capacity for both once those have left. The reservation stands whatever
later estimates say, and its moment is never put off: the client starts at the latest when all
clients that had started in the bundle by then have left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.scheduling.capacity import FreeCapacity, Need, Slot


@dataclass(frozen=True, kw_only=True)
class Occupant:
    """A running client."""

    client: int
    need: Need
    slot: Slot
    end: float
    """When it is expected to end, in seconds since the first start."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A slot that is promised to a waiting client."""

    client: int
    need: Need
    slot: Slot
    awaited: dict[int, Occupant]
    """Running clients on whose capacity it counts, as long as they have not left."""
    moment: float
    """Seconds at which the last of them is expected to end."""

    def admits(self, newcomer: Occupant, free: FreeCapacity) -> bool:
        """Whether the newcomer may start before the client; ``free``: what its bundle has free."""
        if newcomer.slot.bundle != self.slot.bundle or newcomer.end <= self.moment:
            return True
        then = free.copy()
        for other in self.awaited.values():
            then.give(other.need, other.slot)
        then.take(self.need, self.slot)
        return then.fits(newcomer.need, newcomer.slot)

    def note_left(self, client: int) -> None:
        """The client has left its slot: it is awaited no longer."""
        self.awaited.pop(client, None)


def reserve(
    client: int,
    need: Need,
    all_free: Iterable[FreeCapacity],
    occupants: Iterable[Occupant],
    now: float,
) -> Reservation | None:
    """Reserves the slot that is expected to be free soonest; None if none ever is."""
    leaving = sorted(occupants, key=lambda other: (other.end, other.client))
    reservations = []
    for free in all_free:
        own = [other for other in leaving if other.slot.bundle == free.bundle.name]
        for slot in free.slots(need):
            awaited = _awaited(need, slot, free.copy(), own)
            if awaited is not None:
                moment = max([now, *(other.end for other in awaited)])
                by_id = {other.client: other for other in awaited}
                reservations.append(
                    Reservation(client=client, need=need, slot=slot, awaited=by_id, moment=moment)
                )
    return min(reservations, key=lambda reservation: reservation.moment, default=None)


def _awaited(
    need: Need, slot: Slot, free: FreeCapacity, leaving: Sequence[Occupant]
) -> Sequence[Occupant] | None:
    """The first to leave that make the need fit; None if it does not fit the empty bundle."""
    for count, other in enumerate(leaving):
        if free.fits(need, slot):
            return leaving[:count]
        free.give(other.need, other.slot)
    return leaving if free.fits(need, slot) else None
