"""Which client starts next, for benchmarks/placement.py: our placement, and two to compare with."""

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol

from federations import Job, Machine, with_largest_request

from cluster.scheduling.capacity import Bundle, FreeCapacity, Need, Slot, need_of
from cluster.scheduling.placement import Placement


class Scheduler(Protocol):
    """Starts clients as there is capacity."""

    def start(self) -> tuple[int, Slot] | None:
        """The next client to start now, and its slot."""
        ...

    def finish(self, client: int, seconds: float | None) -> None:
        """A client is done."""
        ...


class FirstCome:
    """By client id, the first that fits: as Ray places actors that all wait from the beginning."""

    def __init__(self, bundles: Sequence[Bundle], jobs: Sequence[Job]) -> None:
        with_gpus = any(bundle.gpus for bundle in bundles)
        self._spaces = {bundle.name: FreeCapacity(bundle) for bundle in bundles}
        self._needs = {job.client: need_of(job.request, with_gpus=with_gpus) for job in jobs}
        self._waiting = sorted(self._needs)
        self._slots: dict[int, Slot] = {}

    def start(self) -> tuple[int, Slot] | None:
        """The first waiting client that fits, in the first slot that it fits."""
        for client in self._waiting:
            slot = self._first_slot(self._needs[client])
            if slot is not None:
                self._waiting.remove(client)
                self._slots[client] = slot
                self._spaces[slot.bundle].take(self._needs[client], slot)
                return client, slot
        return None

    def _first_slot(self, need: Need) -> Slot | None:
        slots = (s for free in self._spaces.values() for s in free.slots(need))
        return next((s for s in slots if self._spaces[s.bundle].fits(need, s)), None)

    def finish(self, client: int, seconds: float | None) -> None:
        """Frees the slot; learns nothing."""
        slot = self._slots.pop(client)
        self._spaces[slot.bundle].give(self._needs[client], slot)


def ours(machine: Machine, jobs: Sequence[Job]) -> Placement:
    """The placement that runs use; it is given work and nominal rates, not the true seconds."""
    placement = Placement(machine.bundles, rates=machine.rates)
    for job in jobs:
        placement.add(job.client, job.request, job.model, job.work)
    return placement


def first_come(machine: Machine, jobs: Sequence[Job]) -> FirstCome:
    """First come, with each client's own request."""
    return FirstCome(machine.bundles, jobs)


def uniform(machine: Machine, jobs: Sequence[Job]) -> FirstCome:
    """Flower's rule: every client gets the same share, which must suffice for the largest."""
    return FirstCome(machine.bundles, with_largest_request(jobs))


SCHEDULERS: dict[str, Callable[[Machine, Sequence[Job]], Scheduler]] = {
    "ours": ours,
    "first come": first_come,
    "uniform": uniform,
}


def simulate(
    scheduler: Scheduler, jobs: Sequence[Job], startup: Mapping[int, float] | None = None
) -> float:
    """The makespan in simulated seconds; `startup`: seconds from placement to training."""
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
