"""The claim of the longest waiting client, so that shorter ones that pass it cannot starve it.

It names the seat that is expected to be free for the client soonest, those who sit in that room
and must leave first, and the moment at which the last of them is expected to end. Until the client
has started, another may start in that room only if it is expected to be gone by that moment, or if
there is room for both once those have left. The claim stands whatever later estimates say, and its
moment is never put off: the client starts at the latest when everyone has left who had started in
the room by then.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.scheduling.capacity import Need, Seat, Space


@dataclass(frozen=True, kw_only=True)
class Sitting:
    """A running client."""

    client: int
    need: Need
    seat: Seat
    end: float
    """When it is expected to end, in seconds since the first start."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a waiting client is promised."""

    client: int
    need: Need
    seat: Seat
    awaited: dict[int, Sitting]
    """Those whose capacity it counts on and who have not left yet."""
    moment: float
    """Seconds at which the last of them is expected to end."""

    def admits(self, newcomer: Sitting, space: Space) -> bool:
        """Whether the newcomer may start before the client; `space`: what is left of its room."""
        if newcomer.seat.room != self.seat.room or newcomer.end <= self.moment:
            return True
        then = space.copy()
        for other in self.awaited.values():
            then.give(other.need, other.seat)
        then.take(self.need, self.seat)
        return then.fits(newcomer.need, newcomer.seat)

    def note_left(self, client: int) -> None:
        """The client has left its seat: nobody waits for it any more."""
        self.awaited.pop(client, None)


def stake(
    client: int, need: Need, spaces: Iterable[Space], sitting: Iterable[Sitting], now: float
) -> Claim | None:
    """The client's claim to the seat that is expected to be free soonest; None if none ever is."""
    leaving = sorted(sitting, key=lambda other: (other.end, other.client))
    claims = []
    for space in spaces:
        own = [other for other in leaving if other.seat.room == space.room.name]
        for seat in space.seats(need):
            awaited = _awaited(need, seat, space.copy(), own)
            if awaited is not None:
                moment = max([now, *(other.end for other in awaited)])
                by_id = {other.client: other for other in awaited}
                claims.append(
                    Claim(client=client, need=need, seat=seat, awaited=by_id, moment=moment)
                )
    return min(claims, key=lambda claim: claim.moment, default=None)


def _awaited(
    need: Need, seat: Seat, space: Space, leaving: Sequence[Sitting]
) -> Sequence[Sitting] | None:
    """The first to leave after whom the need fits; None if it does not fit the empty room."""
    for count, other in enumerate(leaving):
        if space.fits(need, seat):
            return leaving[:count]
        space.give(other.need, other.seat)
    return leaving if space.fits(need, seat) else None
