"""Runs clients' jobs on Ray: actors placed longest first, with failed clients tried again.

A client that needs much has a process to itself while it trains; light ones train in cohorts, each
as one computation. A process takes one client or cohort after another of the same request. A
client is tried again elsewhere if its process, node or task fails, and computes the same; one that
went over its share is tried once more with twice as much.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import lru_cache
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from cluster.clients.actors import Actors, Inbox, Process
from cluster.clients.extensions import packed_models
from cluster.clients.memory_cap import OverspentError, larger
from cluster.hardware.bundles import Bundles, await_gpus
from cluster.scheduling.capacity import at_once, need_of
from cluster.scheduling.placement import Placement, clients_per_call, waves
from fl.data.datasets import Split
from fl.errors import ClientFailed, UserError, reason_of
from fl.events import PERIOD_S, AttemptFailed, ClientStart, Events
from fl.exchange import Upload, of_cohort, readable_notes
from fl.executor import time_limit
from fl.federation import Job, Request
from fl.training.sizes import CohortSizes, groups, take, work, work_together
from fl.training.slots import SLOTS

NODE_CHECK_S = 5.0
"""Seconds between checks whether a node has vanished; completions are awaited, not polled."""


@dataclass
class RunningCohort:
    """Clients at work in one process: light ones of a group, by cohorts, or a single one."""

    jobs: list[Job]
    size: int
    """Clients of a cohort."""
    process: Process
    limit: float
    """Seconds that they may take; infinite where nothing is known of their model."""
    began: float = field(default_factory=monotonic)


@dataclass(eq=False)
class RayExecutor:
    """Starts actors as capacity allows, and ends each when others need its capacity.

    A run of many rounds reuses the processes: starting a process takes longer than many a client's
    round. Which clients run at once, where, or after how many failures, has no influence on what
    they compute.
    """

    train: Split
    """The training split, put once into the object store."""
    bundles: Bundles
    """Where clients may run."""
    _: KW_ONLY
    max_actors: int | None = None
    """Clients at once, at most; None for as many as fit."""
    attempts: int = 3
    """How often a client is tried before it has failed for good."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Seconds per sample by model, measured before the run; what clients take adds to it."""
    before: Callable[[], None] = lambda: None
    """Called when clients are about to start, to free memory for them."""
    sizes: CohortSizes = field(default_factory=CohortSizes)
    """How many light clients train together."""
    timeout: float | None = None
    """Seconds that a client may take, see :func:`fl.executor.time_limit`."""
    reuse_processes: bool = False
    """Whether processes outlive the map, until :meth:`close`."""

    def __post_init__(self) -> None:
        self.progress = Inbox()
        self.actors = Actors(self.train, self.bundles, self.progress.mailbox)

    def run(
        self, jobs: Sequence[Job], events: Events
    ) -> Generator[tuple[Job, Upload | ClientFailed], None, None]:
        """Yields each job with what became of it; see :class:`fl.federation.Executor`."""
        if jobs:
            self.before()
        self.actors.models = packed_models()
        current = _Map(self, jobs, events)
        try:
            yield from current.work()
        finally:
            self.actors.end_all(but_idle=self.reuse_processes)  # those at work in any case
            self.rates = {**self.rates, **current.rates}
        if not self.reuse_processes:
            await_gpus(self.bundles)  # the server's ranks come next

    def close(self) -> None:
        """Ends every process."""
        self.actors.end_all()
        self.progress.close()


def as_it_trains(job: Job) -> Job:
    """The job; without waves if it is not the training that was seen to train in slots: it has
    another task, or its record was measured with other settings than how long it trains, as
    FedGen's without its generator."""
    client = job.client
    training: Any = client.training  # a frozen record: it can be hashed
    if not client.request.in_waves:
        return job
    if job.task == training.task and _is_as_measured(training, job.run_spec.num_classes):
        return job
    request = replace(client.request, in_waves=False)
    return replace(job, client=replace(client, request=request))


@lru_cache  # of a hundred thousand clients most have one record
def _is_as_measured(training: Any, num_classes: int) -> bool:
    seen, _ = training.probe(1, num_classes)
    return seen.speed_settings() == training.speed_settings()


def _overspent(error: Exception | None) -> bool:
    return isinstance(error, RayTaskError) and isinstance(error.cause, OverspentError)


class _Map:
    """One map's clients, from first start to last finish."""

    def __init__(self, executor: RayExecutor, jobs: Sequence[Job], events: Events) -> None:
        self._executor = executor
        self._actors = executor.actors
        self._bundles = executor.bundles
        self._events = events
        self._waiting: dict[int, tuple[list[Job], deque[Job]]] = {}
        self._placement = Placement(
            self._bundles.all, most=executor.max_actors, rates=executor.rates
        )
        self._failures: Counter[int] = Counter()
        self._enlarged: set[int] = set()
        self._given_up: list[tuple[Job, ClientFailed]] = []
        self._lost: set[str] = set()
        self._running: dict[Any, RunningCohort] = {}
        for group in groups(map(as_it_trains, jobs)):
            self._enqueue(group)

    @property
    def rates(self) -> Mapping[str, float]:
        """Seconds per sample by model, by what has finished so far."""
        return self._placement.rates

    def work(self) -> Generator[tuple[Job, Upload | ClientFailed], None, None]:
        """Places clients, awaits them, and yields results until no job is left."""
        while self._placement.any_waiting or self._running:
            self._start_those_that_fit()
            for reference in self._await():
                cohort = self._running.pop(reference)
                uploads = self._receive(reference, cohort)
                if uploads:  # after a failure, look first whether the node is gone
                    self._start_those_that_fit()  # these train while the results are being stored
                for job in cohort.jobs if uploads else ():
                    yield job, uploads.pop(0)  # and what was parsed of it is not held
            self._end_overdue()
            self._leave_lost_bundles()
            while self._given_up:
                yield self._given_up.pop()

    def _await(self) -> list[Any]:
        """Waits for the next that is done, at most until nodes are to be checked.

        Meanwhile it emits clients' progress.
        """
        for _ in range(round(NODE_CHECK_S / PERIOD_S)):
            done, _ = ray.wait(list(self._running), num_returns=1, timeout=PERIOD_S)
            at_work = {job.client.id for c in self._running.values() for job in c.jobs}
            for report in self._executor.progress.read(at_work):
                self._events.emit(report)
            if done:
                return done
        return []

    def _enqueue(self, group: deque[Job]) -> None:
        """Lets the group's next clients wait for a slot; of those who train in slots all, wave by
        wave."""
        first, sizes = group[0], self._executor.sizes
        processes = self._at_once(first.client.request)
        if first.client.request.in_waves:
            for size in waves(len(group), SLOTS, processes):
                self._wait(take(group, size), deque())
            return
        seconds = work(first) * self.rates.get(first.client.model, 0)
        measured = seconds if sizes.knows(first) else None
        size = clients_per_call(sizes.next(first), len(group), processes, measured)
        self._wait(take(group, size), group)

    def _at_once(self, request: Request) -> int:
        """How many processes with that request may be at work."""
        bundles = self._bundles.all
        need = need_of(request, with_gpus=any(bundle.gpus for bundle in bundles))
        processes = sum(at_once(bundle, need) for bundle in bundles)
        return max(1, min(processes, self._executor.max_actors or processes))

    def _wait(self, jobs: list[Job], rest: deque[Job]) -> None:
        """Lets clients wait for a slot, under the first one's id; the rest follows them."""
        leader = jobs[0].client
        self._waiting[leader.id] = jobs, rest
        self._placement.add(leader.id, leader.request, leader.model, work_together(jobs))

    def _start_those_that_fit(self) -> None:
        while started := self._placement.start():
            leader, slot = started
            jobs, rest = self._waiting.pop(leader)
            if rest:
                self._enqueue(rest)
            process = self._actors.hire(slot, jobs[0].client.request)
            for job in jobs:
                attempt, requested = self._failures[job.client.id] + 1, asdict(job.client.request)
                start = ClientStart(client=job.client.id, attempt=attempt, requested=requested)
                self._events.emit(start)
            size = self._executor.sizes.next(jobs[0])
            limit = time_limit(jobs, self._executor.timeout, self.rates) or math.inf
            reference = self._actors.submit(process, jobs, size)
            self._running[reference] = RunningCohort(jobs, size, process, limit)

    def _receive(self, reference: Any, cohort: RunningCohort) -> list[Upload]:
        """The clients' uploads; none where they failed and wait to be tried again."""
        jobs, leader = cohort.jobs, cohort.jobs[0].client
        try:
            # Views into the object store: they are read once the next clients have started.
            uploads = of_cohort(ray.get(reference), mapped=True)
        except RayError as error:
            reason = f"its process died ({type(error).__name__})"
            if isinstance(error, RayTaskError):  # the client's own code raised it
                reason = f"{type(error.cause).__name__}: {reason_of(error.cause)}"
            self._failed(cohort, reason, error)
            return []
        notes = readable_notes(uploads)
        seconds = sum(note.seconds for note in notes)
        # A job that asks something less takes another time than the training that work is of.
        trained = jobs[0].task == leader.training.task and jobs[0].test is None
        self._placement.finish(leader.id, seconds, trained=trained)
        self._executor.sizes.learn(jobs, notes)
        cohort.process.idle = True
        return uploads

    def _failed(self, cohort: RunningCohort, reason: str, error: Exception | None = None) -> None:
        """Ends the process; several clients train by halves next, which shows in the end who
        failed."""
        self._actors.end(cohort.process)
        self._placement.finish(cohort.jobs[0].client.id, None)
        if len(cohort.jobs) == 1:
            self._try_again(cohort.jobs[0], reason, error)
        else:
            size = min(cohort.size, len(cohort.jobs))
            if _overspent(error) and size > 1:
                self._executor.sizes.overspent(cohort.jobs[0], size)
            middle = len(cohort.jobs) // 2
            self._enqueue(deque(cohort.jobs[:middle]))
            self._enqueue(deque(cohort.jobs[middle:]))

    def _end_overdue(self) -> None:
        """Ends clients that have taken longer than they may."""
        for reference, cohort in list(self._running.items()):
            if monotonic() - cohort.began > cohort.limit:
                del self._running[reference]
                self._failed(cohort, f"it had not finished after {cohort.limit:g} s")

    def _try_again(self, job: Job, reason: str, error: Exception | None = None) -> None:
        """Has the client wait again, once with twice the share that it went over; or gives it up
        for good."""
        client, attempts = job.client, self._executor.attempts
        self._failures[client.id] += 1
        attempt = self._failures[client.id]
        self._events.emit(AttemptFailed(client=client.id, attempt=attempt, reason=reason))
        if attempt >= attempts:
            self._give_up(job, f"{reason} (attempt {attempt} of {attempt})", error)
        elif _overspent(error) and client.id in self._enlarged:
            self._give_up(job, f"{reason} (with twice the share it had first)", error)
        else:
            again = job
            if _overspent(error):
                self._enlarged.add(client.id)
                again = replace(job, client=replace(client, request=larger(client.request)))
            try:
                self._enqueue(deque([again]))
            except UserError as refusal:
                self._give_up(job, f"{reason}; with twice its share {refusal}", error)

    def _give_up(self, job: Job, reason: str, error: Exception | None) -> None:
        failed = ClientFailed(job.client.id, job.client.model, reason)
        failed.__cause__ = error
        self._given_up.append((job, failed))

    def _leave_lost_bundles(self) -> None:
        for bundle in self._bundles.lost() - self._lost:
            self._lost.add(bundle)
            self._actors.end_all(bundle=bundle)
            gone = set(self._placement.drop_bundle(bundle))
            for reference, cohort in list(self._running.items()):
                if cohort.jobs[0].client.id in gone:
                    del self._running[reference]
                    for job in cohort.jobs:
                        self._try_again(job, f"node {self._bundles.nodes[bundle][:8]} is gone")
