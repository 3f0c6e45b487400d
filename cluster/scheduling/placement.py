"""Who starts next, and where: longest first, on seats that are never overbooked.

No clock, no Ray, no randomness: the same calls in the same order give the same placement.

- The order is longest first by estimated time, and who needs what is scarcest before who does not
  (:mod:`cluster.scheduling.order`). Estimates follow what finished clients took
  (:mod:`cluster.scheduling.rates`).
- Later ones may pass the first in line when it fits nowhere, within the claim that it then stakes
  (:mod:`cluster.scheduling.reservation`): nobody starves.

Time is what finished clients tell: one that ran for 10 s moves it to 10 s after its own start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.scheduling.bound import lower_bound
from cluster.scheduling.capacity import Need, Room, Seat, Space, could_seat, need_of, refusal
from cluster.scheduling.order import Waiting, in_order
from cluster.scheduling.rates import Rates
from cluster.scheduling.reservation import Claim, Sitting, stake
from fl.errors import UserError
from fl.federation import Request

__all__ = ["Placement", "Room", "Seat", "lower_bound"]


@dataclass(frozen=True)
class _Entry:
    client: int
    request: Request
    need: Need
    model: str
    work: float


@dataclass(frozen=True)
class _Running:
    entry: _Entry
    seat: Seat
    began: float


class Placement:
    """Seats clients in rooms.

    Args:
        rooms: where there is capacity. If none has a GPU, no client asks for a share of one.
        most: clients at once, at most; None for as many as fit.
        rates: seconds per unit of work by model, measured before the run.
    """

    def __init__(
        self,
        rooms: Sequence[Room],
        *,
        most: int | None = None,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self._spaces = {room.name: Space(room) for room in rooms}
        if len(self._spaces) < len(rooms):
            raise ValueError(f"two rooms of one name: {[room.name for room in rooms]}")
        self._with_gpus = any(room.gpus for room in rooms)
        self._most = most
        self._rates = Rates(rates or {})
        self._entries: dict[int, _Entry] = {}
        self._waiting: set[int] = set()
        self._running: dict[int, _Running] = {}
        self._claim: Claim | None = None
        self._now = 0.0

    @property
    def waiting(self) -> tuple[int, ...]:
        """Clients that have not started, in the order in which they are offered a seat."""
        return tuple(entry.client for entry in self._queue())

    @property
    def running(self) -> tuple[int, ...]:
        """Clients on a seat, by id."""
        return tuple(sorted(self._running))

    def add(self, client: int, request: Request, model: str, work: float) -> None:
        """Lets a client wait for a seat; once more when it is to be tried again.

        Args:
            work: samples times epochs.

        Raises:
            UserError: no room could seat it, even an empty one.
            ValueError: it is waiting or running already.
        """
        if client in self._waiting or client in self._running:
            raise ValueError(f"client {client} is waiting or running already")
        need = need_of(request, with_gpus=self._with_gpus)
        entry = _Entry(client, request, need, model, work)
        if not any(could_seat(space.room, need) for space in self._spaces.values()):
            raise self._refusal(entry)
        self._entries[client] = entry
        self._waiting.add(client)

    def start(self) -> tuple[int, Seat] | None:
        """Seats the next client; None if no other can start now.

        Raises:
            UserError: all who still wait fit no room that is left, even an empty one.
        """
        if self._most is not None and len(self._running) >= self._most:
            return None
        full: set[Need] = set()
        for entry in self._queue():
            if entry.need in full:
                continue
            free = self._free_seats(entry.need)
            if not free:
                full.add(entry.need)
                self._claim = self._claim or self._stake(entry)
            elif seats := [seat for seat in free if self._admits(entry, seat)]:
                return self._sit(entry, min(seats, key=self._tightness))
        if self._waiting and not self._running:
            raise self._refusal(self._queue()[0])
        return None

    def finish(self, client: int, seconds: float | None) -> None:
        """Frees the client's seat.

        Args:
            seconds: how long it ran, to learn from; None if it failed, which teaches nothing.
        """
        left = self._leave(client)
        if seconds is not None:
            self._now = max(self._now, left.began + seconds)
            self._rates.learn(left.entry.model, left.entry.work, seconds)

    def drop_room(self, name: str) -> list[int]:
        """Forgets a room that is gone; returns who sat there, who must be added again."""
        lost = sorted(client for client, at in self._running.items() if at.seat.room == name)
        for client in lost:
            self._leave(client)
        del self._spaces[name]
        if self._claim is not None and self._claim.seat.room == name:
            self._claim = None
        return lost

    @property
    def rates(self) -> Mapping[str, float]:
        """Seconds per unit of work by model: measured here, else as given."""
        return self._rates.known

    def estimate(self, client: int) -> float:
        """Seconds that the client is expected to run for, by what is known now."""
        entry = self._entries[client]
        return entry.work * self._rates.rate(entry.model)

    def _queue(self) -> list[_Entry]:
        """The waiting clients: the one with the claim, then by urgency."""
        waiting = [Waiting(c, self._entries[c].need, self.estimate(c)) for c in self._waiting]
        order = in_order(waiting, [space.room for space in self._spaces.values()])
        holder = self._claim.client if self._claim else None
        order.sort(key=lambda client: client != holder)
        return [self._entries[client] for client in order]

    def _free_seats(self, need: Need) -> list[Seat]:
        spaces = self._spaces.values()
        return [seat for s in spaces for seat in s.seats(need) if s.fits(need, seat)]

    def _tightness(self, seat: Seat) -> tuple[int, int]:
        """Best fit on GPUs, to keep large shares whole; elsewhere most cores, apart from GPUs."""
        space = self._spaces[seat.room]
        first = len(space.gpus) if seat.gpu is None else space.gpus[seat.gpu]
        return first, -space.cpus

    def _admits(self, entry: _Entry, seat: Seat) -> bool:
        if self._claim is None or self._claim.client == entry.client:
            return True
        newcomer = self._sitting(_Running(entry, seat, self._now))
        return self._claim.admits(newcomer, self._spaces[seat.room])

    def _stake(self, entry: _Entry) -> Claim | None:
        everyone = [self._sitting(running) for running in self._running.values()]
        return stake(entry.client, entry.need, self._spaces.values(), everyone, self._now)

    def _sitting(self, running: _Running) -> Sitting:
        entry = running.entry
        end = max(self._now, running.began + self.estimate(entry.client))
        return Sitting(client=entry.client, need=entry.need, seat=running.seat, end=end)

    def _sit(self, entry: _Entry, seat: Seat) -> tuple[int, Seat]:
        if self._claim is not None and self._claim.client == entry.client:
            self._claim = None
        self._waiting.remove(entry.client)
        self._running[entry.client] = _Running(entry, seat, self._now)
        self._spaces[seat.room].take(entry.need, seat)
        return entry.client, seat

    def _leave(self, client: int) -> _Running:
        left = self._running.pop(client)
        self._spaces[left.seat.room].give(left.entry.need, left.seat)
        if self._claim is not None:
            self._claim.note_left(client)
        return left

    def _refusal(self, entry: _Entry) -> UserError:
        rooms = [space.room for space in self._spaces.values()]
        return refusal(f"client {entry.client} ({entry.model})", entry.request, rooms)
