"""Which client starts next, and where: longest first, on slots that are never overbooked.

No clock, no Ray, no randomness: the same calls in the same order give the same placement. Time
advances by what finished clients took: one that ran for 10 s moves it to 10 s after its own start.

Clients are offered a slot by urgency (:mod:`cluster.scheduling.order`). When the first in line fits
nowhere, it gets a reservation, and later ones may pass it as far as that allows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf

from cluster.scheduling.capacity import (
    Bundle,
    FreeCapacity,
    Need,
    Slot,
    could_fit,
    need_of,
    refusal,
)
from cluster.scheduling.order import Entry, Queue, Rates
from fl.errors import UserError
from fl.federation import Request

CALL_SECONDS = 0.5
"""Seconds that a call may take. Each call costs the process some milliseconds of waiting, as long
as small clients train; a longer call would delay its results and leave other processes idle."""
MOST = 16
"""Clients in a call, at most: their uploads are in memory together."""


def clients_per_call(cohort: int, left: int, processes: int, seconds_each: float | None) -> int:
    """How many of the ``left`` light clients go into one call of a process: whole cohorts.

    Args:
        cohort: clients that train together.
        left: clients that wait.
        processes: how many processes may share them.
        seconds_each: what a client takes; None while that is not measured.
    """
    fair = -(-left // processes)
    cohort = min(cohort, fair)
    if not seconds_each:
        return cohort
    # Half a fair share at most, so that the last calls are short and all end together.
    clients = min(CALL_SECONDS / seconds_each, fair / 2, MOST)
    return cohort * max(1, int(clients / cohort))


def waves(clients: int, slots: int, processes: int) -> list[int]:
    """How many light clients go into each call of those who train in slots: even waves.

    A wave takes as long with one client as with all of its slots full. So there are as many as let
    all processes end together, and no more.
    """
    rounds = -(-clients // (slots * processes))
    count = min(clients, rounds * processes)
    return [clients // count + (k < clients % count) for k in range(count)]


@dataclass(frozen=True)
class Occupant:
    """A running client."""

    client: int
    need: Need
    slot: Slot
    end: float
    """When it is expected to end, in seconds since the first start."""


@dataclass(frozen=True)
class Reservation:
    """A slot that is promised to the first client in line, so that others cannot starve it.

    It names the slot that is expected to be free for the client soonest, the running clients of
    that bundle that must leave first, and the moment at which the last of them is expected to end.
    It stands whatever later estimates say, and its moment is never put off: the client starts at
    the latest when all clients that had started in the bundle by then have left.
    """

    client: int
    need: Need
    slot: Slot
    awaited: dict[int, Occupant]
    """Running clients on whose capacity it counts, as long as they have not left."""
    moment: float
    """Seconds at which the last of them is expected to end."""

    def admits(self, newcomer: Occupant, free: FreeCapacity) -> bool:
        """Whether the newcomer may start before the client; ``free``: what its bundle has free.

        In the same bundle it may if it is expected to end by the moment, or if there is capacity
        for both once those awaited have left.
        """
        if newcomer.slot.bundle != self.slot.bundle or newcomer.end <= self.moment:
            return True
        then = free.copy()
        for other in self.awaited.values():
            then.give(other.need, other.slot)
        then.take(self.need, self.slot)
        return then.fits(newcomer.need, newcomer.slot)


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
            then, awaited, moment = free.copy(), dict[int, Occupant](), now
            for other in own:
                if then.fits(need, slot):
                    break
                then.give(other.need, other.slot)
                awaited[other.client], moment = other, max(moment, other.end)
            if then.fits(need, slot):
                reservations.append(Reservation(client, need, slot, awaited, moment))
    return min(reservations, key=lambda reservation: reservation.moment, default=None)


@dataclass(frozen=True, slots=True)
class _Running:
    entry: Entry
    slot: Slot
    began: float


class Placement:
    """Places clients in bundles.

    Args:
        bundles: where there is capacity. If none has a GPU, no client asks for a share of one.
        most: clients at once, at most; None for as many as fit.
        rates: seconds per unit of work by model, measured before the run.
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        *,
        most: int | None = None,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self._free = {bundle.name: FreeCapacity(bundle) for bundle in bundles}
        self._with_gpus = any(bundle.gpus for bundle in bundles)
        self._most = most
        self._rates = Rates(rates or {})
        self._fit: dict[Need, bool] = {}
        self._waiting = Queue()
        self._running: dict[int, _Running] = {}
        self._reservation: Reservation | None = None
        self._now = 0.0

    @property
    def any_waiting(self) -> bool:
        """Whether there is a client that has not started."""
        return len(self._waiting) > 0

    def add(self, client: int, request: Request, model: str, work: float) -> None:
        """Lets a client wait for a slot; called once more when it is to be tried again. Its work is
        samples times epochs.

        Raises:
            UserError: it would not fit any bundle, even an empty one.
            ValueError: it is waiting or running already.
        """
        if client in self._waiting or client in self._running:
            raise ValueError(f"client {client} is waiting or running already")
        need = need_of(request, with_gpus=self._with_gpus)
        entry = Entry(client, request, need, model, work)
        if need not in self._fit:
            self._fit[need] = any(could_fit(free.bundle, need) for free in self._free.values())
        if not self._fit[need]:
            raise self._refusal(entry)
        self._waiting.add(entry)

    def queue(self) -> list[Entry]:
        """The waiting clients: the one with the reservation, then by urgency."""
        holder = self._holder()
        return holder + [entry for entry in self._walk({}) if entry not in holder]

    def start(self) -> tuple[int, Slot] | None:
        """Places the next client; None if no other can start now.

        Raises:
            UserError: no waiting client fits any bundle that is left, even an empty one.
        """
        if self._most is not None and len(self._running) >= self._most:
            return None
        latest: dict[Need, float] = {}
        for entry in chain(self._holder(), self._walk(latest)):
            free = self._free_slots(entry.need)
            if not free:
                latest[entry.need] = -inf
                self._reservation = self._reservation or self._reserve(entry)
            elif slots := [slot for slot in free if self._admits(entry, slot)]:
                return self._sit(entry, min(slots, key=self._tightness))
            elif self._reservation is not None:
                latest[entry.need] = self._reservation.moment
        if self.any_waiting and not self._running:
            raise self._refusal(self.queue()[0])
        return None

    def finish(self, client: int, seconds: float | None, *, trained: bool = True) -> None:
        """Frees the slot of a client that ran for so many seconds; None if it failed. Its rate is
        learned if it ``trained``: did its work, and not something else."""
        left = self._leave(client)
        if seconds is not None:
            self._now = max(self._now, left.began + seconds)
        if seconds is not None and trained:
            self._rates.learn(left.entry.model, left.entry.work, seconds)

    def drop_bundle(self, name: str) -> list[int]:
        """Forgets a bundle that is gone; returns the clients that ran there, to be added again."""
        lost = sorted(client for client, at in self._running.items() if at.slot.bundle == name)
        for client in lost:
            self._leave(client)
        del self._free[name]
        self._fit.clear()
        if self._reservation is not None and self._reservation.slot.bundle == name:
            self._reservation = None
        return lost

    @property
    def rates(self) -> Mapping[str, float]:
        """Seconds per unit of work by model: measured here, else as given."""
        return self._rates.current

    @property
    def _bundles(self) -> list[Bundle]:
        return [free.bundle for free in self._free.values()]

    def _walk(self, latest: Mapping[Need, float]) -> Iterator[Entry]:
        """See :meth:`cluster.scheduling.order.Queue.walk`."""
        return self._waiting.walk(self._rates.rate, self._bundles, self._now, latest)

    def _holder(self) -> list[Entry]:
        """The waiting client with the reservation, who is offered a slot first."""
        if self._reservation is None or self._reservation.client not in self._waiting:
            return []
        return [self._waiting[self._reservation.client]]

    def _free_slots(self, need: Need) -> list[Slot]:
        all_free = self._free.values()
        return [slot for s in all_free for slot in s.slots(need) if s.fits(need, slot)]

    def _tightness(self, slot: Slot) -> tuple[int, int]:
        """Best fit on GPUs, to leave large shares free; elsewhere most cores, apart from GPUs."""
        free = self._free[slot.bundle]
        first = len(free.gpus) if slot.gpu is None else free.gpus[slot.gpu]
        return first, -free.cpus

    def _admits(self, entry: Entry, slot: Slot) -> bool:
        if self._reservation is None or self._reservation.client == entry.client:
            return True
        newcomer = self._occupant(_Running(entry, slot, self._now))
        return self._reservation.admits(newcomer, self._free[slot.bundle])

    def _reserve(self, entry: Entry) -> Reservation | None:
        occupants = [self._occupant(running) for running in self._running.values()]
        return reserve(entry.client, entry.need, self._free.values(), occupants, self._now)

    def _occupant(self, running: _Running) -> Occupant:
        entry = running.entry
        end = max(self._now, running.began + entry.work * self._rates.rate(entry.model))
        return Occupant(entry.client, entry.need, running.slot, end)

    def _sit(self, entry: Entry, slot: Slot) -> tuple[int, Slot]:
        if self._reservation is not None and self._reservation.client == entry.client:
            self._reservation = None
        self._waiting.remove(entry.client)
        self._running[entry.client] = _Running(entry, slot, self._now)
        self._free[slot.bundle].take(entry.need, slot)
        return entry.client, slot

    def _leave(self, client: int) -> _Running:
        left = self._running.pop(client)
        self._free[left.slot.bundle].give(left.entry.need, left.slot)
        if self._reservation is not None:
            self._reservation.awaited.pop(client, None)  # its capacity is free already
        return left

    def _refusal(self, entry: Entry) -> UserError:
        return refusal(f"client {entry.client} ({entry.model})", entry.request, self._bundles)
