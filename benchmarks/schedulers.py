"""Whom to start next, for benchmarks/placement.py: our placement, and two to hold it against."""

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol

from federations import Job, Machine, with_largest_request

from cluster.scheduling.capacity import Need, Seat, Space, need_of
from cluster.scheduling.placement import Placement, Room


class Scheduler(Protocol):
    """Starts clients as there is room."""

    def start(self) -> tuple[int, Seat] | None:
        """The next client to start now, and its seat."""
        ...

    def finish(self, client: int, seconds: float | None) -> None:
        """A client is done."""
        ...


class FirstCome:
    """By client id, the first that fits: as Ray seats actors that all wait from the beginning."""

    def __init__(self, rooms: Sequence[Room], jobs: Sequence[Job]) -> None:
        with_gpus = any(room.gpus for room in rooms)
        self._spaces = {room.name: Space(room) for room in rooms}
        self._needs = {job.client: need_of(job.request, with_gpus=with_gpus) for job in jobs}
        self._waiting = sorted(self._needs)
        self._seats: dict[int, Seat] = {}

    def start(self) -> tuple[int, Seat] | None:
        """The first waiting client that fits, on the first seat that it fits."""
        for client in self._waiting:
            seat = self._first_seat(self._needs[client])
            if seat is not None:
                self._waiting.remove(client)
                self._seats[client] = seat
                self._spaces[seat.room].take(self._needs[client], seat)
                return client, seat
        return None

    def _first_seat(self, need: Need) -> Seat | None:
        seats = (s for space in self._spaces.values() for s in space.seats(need))
        return next((s for s in seats if self._spaces[s.room].fits(need, s)), None)

    def finish(self, client: int, seconds: float | None) -> None:
        """Frees the seat; learns nothing."""
        seat = self._seats.pop(client)
        self._spaces[seat.room].give(self._needs[client], seat)


def ours(machine: Machine, jobs: Sequence[Job]) -> Placement:
    """The placement that runs use; it knows work and nominal rates, not the true seconds."""
    placement = Placement(machine.rooms, rates=machine.rates)
    for job in jobs:
        placement.add(job.client, job.request, job.model, job.work)
    return placement


def first_come(machine: Machine, jobs: Sequence[Job]) -> FirstCome:
    """Every client asks for its own."""
    return FirstCome(machine.rooms, jobs)


def uniform(machine: Machine, jobs: Sequence[Job]) -> FirstCome:
    """Flower's rule: every client gets the same share, which must do for the largest."""
    return FirstCome(machine.rooms, with_largest_request(jobs))


SCHEDULERS: dict[str, Callable[[Machine, Sequence[Job]], Scheduler]] = {
    "ours": ours,
    "first come": first_come,
    "uniform": uniform,
}


def simulate(
    scheduler: Scheduler, jobs: Sequence[Job], startup: Mapping[int, float] | None = None
) -> float:
    """The makespan in simulated seconds; `startup` are seconds a client sits before it trains."""
    seconds = {job.client: job.seconds for job in jobs}
    now, ends = 0.0, list[tuple[float, int]]()
    while True:
        while started := scheduler.start():
            client = started[0]
            heappush(ends, (now + (startup or {}).get(client, 0.0) + seconds[client], client))
        if not ends:
            return now
        now, client = heappop(ends)
        scheduler.finish(client, seconds[client])
