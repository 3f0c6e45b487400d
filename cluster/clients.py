"""Runs clients' jobs on Ray: actors seated by longest-first placement, and nothing lost.

A client that needs much has a process of its own; light ones share a few, a cohort after another,
each trained as one computation. A client whose process, node or task fails is tried again
elsewhere, and computes the same.
"""

import gc
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from cluster.placement import Placement, Seat
from cluster.rooms import Rooms
from cluster.share import capped
from fl.data.datasets import Split
from fl.events import Events
from fl.executor import ClientFailed, run_jobs
from fl.federation import Job, Request
from fl.training.sizes import CohortSizes, groups, take, work
from fl.wire import unpack_note

NODE_CHECK_S = 5.0
"""Completions are awaited; only whether a node silently vanished is looked up this often."""


class ClientActor:
    """A client's process. It sees only the devices that Ray assigned to it."""

    def __init__(self) -> None:
        # What was imported stays: collecting garbage need not look at it again and again.
        gc.freeze()

    def run(self, jobs: list[Job], images: Any, labels: Any) -> list[bytes]:
        """Runs a cohort; the training split comes from the object store without a copy."""
        context = ray.get_runtime_context()
        with capped(jobs[0].client.request):
            return run_jobs(jobs, Split(images, labels), assigned=context.get_assigned_resources())


@dataclass
class Seated:
    """A cohort of clients at work: light ones of one make, or a single client."""

    cohort: list[Job]
    seat: Seat
    actor: Any


class RayExecutor:
    """Starts actors as room allows, and ends each when nobody needs it any more.

    Which clients run at once, where, or after how many failures, has no influence on what they
    compute.
    """

    def __init__(
        self,
        train: Split,
        rooms: Rooms,
        *,
        max_actors: int | None = None,
        attempts: int = 3,
        sizes: CohortSizes | None = None,
    ) -> None:
        self._images, self._labels = ray.put(train.images), ray.put(train.labels)
        self.rooms = rooms
        self.max_actors = max_actors
        self.attempts = attempts
        self.sizes = sizes or CohortSizes()

    def run(self, jobs: Sequence[Job], events: Events) -> Iterator[tuple[Job, bytes]]:
        """Yields each job with its packed result; see :class:`fl.federation.Executor`."""
        shift = _Shift(self, jobs, events)
        try:
            yield from shift.work()
        finally:
            shift.close()

    def submit(self, actor: Any, cohort: list[Job]) -> Any:
        """Starts the jobs on the actor and returns the reference to their results."""
        return actor.run.remote(cohort, self._images, self._labels)

    def hire(self, seat: Seat, request: Request) -> Any:
        """A new process in that seat's room, with what the client asks for."""
        return (
            ray.remote(ClientActor)
            .options(
                num_cpus=request.cpus,
                num_gpus=request.gpus if seat.gpu is not None else 0,
                memory=request.memory_bytes or None,
                max_restarts=0,
                scheduling_strategy=self.rooms.strategy(seat.room),
            )
            .remote()
        )


class _Shift:
    """One map's clients, from first start to last finish."""

    def __init__(self, executor: RayExecutor, jobs: Sequence[Job], events: Events) -> None:
        self._executor = executor
        self._rooms = executor.rooms
        self._events = events
        self._waiting: dict[int, tuple[list[Job], deque[Job]]] = {}
        self._placement = Placement(self._rooms.rooms, most=executor.max_actors)
        self._failures: Counter[int] = Counter()
        self._lost: set[str] = set()
        self._running: dict[Any, Seated] = {}
        self._idle: dict[tuple[str, Request], list[Any]] = {}
        for group in groups(jobs):
            self._enqueue(group)

    def work(self) -> Iterator[tuple[Job, bytes]]:
        """Seats, awaits, and yields results until no job is left."""
        while self._placement.waiting or self._running:
            while started := self._placement.start():
                self._seat(*started)
            done, _ = ray.wait(list(self._running), num_returns=1, timeout=NODE_CHECK_S)
            for reference in done:
                seated = self._running.pop(reference)
                yield from zip(seated.cohort, self._receive(reference, seated), strict=False)
            self._leave_lost_rooms()

    def close(self) -> None:
        """Ends every process: no client holds memory once the map is over."""
        for seated in self._running.values():
            ray.kill(seated.actor)
        for actors in self._idle.values():
            for actor in actors:
                ray.kill(actor)

    def _enqueue(self, group: deque[Job]) -> None:
        """Lets the group's next cohort wait for a seat, in its first client's name."""
        leader = group[0].client
        fair = -(-len(group) // self._most_at_once(leader.request))
        cohort = take(group, min(fair, self._executor.sizes.next(group[0])))
        self._waiting[leader.id] = cohort, group
        self._placement.add(leader.id, leader.request, leader.model, sum(map(work, cohort)))

    def _most_at_once(self, request: Request) -> int:
        seats = sum(int(room.cpus / request.cpus) for room in self._rooms.rooms)
        return max(1, min(seats, self._executor.max_actors or seats))

    def _seat(self, leader: int, seat: Seat) -> None:
        cohort, rest = self._waiting.pop(leader)
        if rest:
            self._enqueue(rest)
        request = cohort[0].client.request
        idle = self._idle.get((seat.room, request), [])
        # An idle process keeps its resources: before another starts, it makes room.
        actor = idle.pop() if idle else self._hire_in_place_of_idle(seat, request)
        for job in cohort:
            attempt = self._failures[job.client.id] + 1
            self._events.emit("client_start", client=job.client.id, attempt=attempt)
        self._running[self._executor.submit(actor, cohort)] = Seated(cohort, seat, actor)

    def _hire_in_place_of_idle(self, seat: Seat, request: Request) -> Any:
        for (room, _), actors in self._idle.items():
            while room == seat.room and actors:
                ray.kill(actors.pop())
        return self._executor.hire(seat, request)

    def _receive(self, reference: Any, seated: Seated) -> list[bytes]:
        """The cohort's results; none where it failed and waits to be tried again."""
        cohort, leader = seated.cohort, seated.cohort[0].client
        try:
            results: list[bytes] = ray.get(reference)
        except RayError as error:
            ray.kill(seated.actor)
            self._placement.finish(leader.id, None)
            if len(cohort) == 1:
                self._try_again(cohort[0], _reason(error), error)
            else:  # who of them it was shows when each trains alone
                for job in cohort:
                    self._enqueue(deque([job]))
            return []
        seconds = sum(unpack_note(packed)["seconds"] for packed in results)
        self._placement.finish(leader.id, seconds)
        self._executor.sizes.learn(cohort, results)
        if leader.request.shared:
            self._idle.setdefault((seated.seat.room, leader.request), []).append(seated.actor)
        else:
            ray.kill(seated.actor)
        return results

    def _try_again(self, job: Job, reason: str, error: Exception | None = None) -> None:
        client = job.client.id
        self._failures[client] += 1
        attempt = self._failures[client]
        self._events.emit("client_failed", client=client, attempt=attempt, reason=reason)
        if attempt >= self._executor.attempts:
            raise ClientFailed(job, f"{reason} (attempt {attempt} of {attempt})") from error
        self._enqueue(deque([job]))

    def _leave_lost_rooms(self) -> None:
        for room in self._rooms.lost() - self._lost:
            self._lost.add(room)
            self._idle = {k: v for k, v in self._idle.items() if k[0] != room}
            gone = set(self._placement.drop_room(room))
            for reference, seated in list(self._running.items()):
                if seated.cohort[0].client.id in gone:
                    del self._running[reference]
                    for job in seated.cohort:
                        self._try_again(job, f"node {self._rooms.nodes[room][:8]} is gone")


def _reason(error: RayError) -> str:
    if isinstance(error, RayTaskError):
        cause = error.cause
        return f"{type(cause).__name__}: {cause}"
    return f"its process died ({type(error).__name__})"
