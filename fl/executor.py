"""Runs clients' jobs: what is the same in this process and in a Ray actor."""

import logging
import socket
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from threading import Timer

import torch

from fl.data.datasets import Split
from fl.data.shard import Shard
from fl.errors import ClientFailed, reason_of
from fl.events import ClientProgress, ClientStart, Events, reported_to
from fl.exchange import ClientNote, Upload, of_cohort, readable_notes, unpack
from fl.federation import Job, TaskInput
from fl.process import arithmetic, has_gpu, peak_memory, retain_freed_memory, threads
from fl.training.sizes import CohortSizes, groups, take, work_together
from fl.training.task import train_many

MOST_NAMED = 5
"""Clients that a line names."""

log = logging.getLogger(__name__)


LEAST_LIMIT_S = 600.0
PATIENCE = 20
"""How many times as long as expected a client may take, where the user names no limit."""


def time_limit(
    jobs: Sequence[Job], given: float | None, rates: Mapping[str, float]
) -> float | None:
    """Seconds that these clients may take, one after another or together.

    Args:
        jobs: the clients' jobs, of one model.
        given: the user's limit for one client.
        rates: seconds per sample by model; of a model that is not measured nothing is expected.

    Returns:
        The limit; None where there is none.
    """
    if given is not None:
        return given * len(jobs)
    rate = rates.get(jobs[0].client.model)
    return None if rate is None else max(LEAST_LIMIT_S, PATIENCE * rate * work_together(jobs))


def run_jobs(
    jobs: Sequence[Job],
    train: Split,
    node: str | None = None,
    assigned: dict[str, float] | None = None,
) -> list[bytes]:
    """Runs a cohort's jobs on this process's device and packs what each client uploads.

    The jobs are of one task, training record and request. The number of threads comes from the
    request, since sums over another number of threads round differently. The note states place,
    time and peak memory. A client's share of the time is by its samples, of the memory an equal
    one. ``node``: where it has another name than this host; ``assigned``: what a scheduler gave
    the process.
    """
    retain_freed_memory()
    began, begin = time.time(), time.perf_counter()
    device = device_here()
    on_threads = threads(jobs[0].client.request.threads)
    with on_threads, arithmetic(device, tf32=jobs[0].run_spec.tf32), peak_memory(device) as peak:
        outputs = train_many(jobs[0].task, [input_of(job, train, device) for job in jobs])
    took = time.perf_counter() - begin
    seconds_per_sample = took / sum(len(job.indices) for job in jobs)
    return [
        ClientNote(
            client=job.client.id,
            role=job.client.role,
            model=job.client.model,
            seconds=round(seconds_per_sample * len(job.indices), 4),
            span=(began, began + took),
            node=node or socket.gethostname(),
            device=device.type,
            device_uuid=device_uuid(device),
            assigned=assigned,
            peak_bytes=None if peak.bytes is None else peak.bytes // len(jobs),
            cohort=len(jobs),
            stats=output.stats,
            losses=output.losses,
        ).pack(output.tensors)
        for job, output in zip(jobs, outputs, strict=True)
    ]


def device_here() -> torch.device:
    """Where clients of this process train."""
    return torch.device("cuda" if has_gpu() else "cpu")


def input_of(job: Job, train: Split, device: torch.device) -> TaskInput:
    """What the job's task is given."""
    classes = job.run_spec.num_classes
    return TaskInput(
        client=job.client,
        run_spec=job.run_spec,
        shard=Shard.from_split(train, job.indices, classes),
        test=None if job.test is None else Shard.from_split(train, job.test, classes),
        device=device,
        broadcast=unpack(job.broadcast)[0] if job.broadcast else {},
        payload=unpack(job.payload)[0] if job.payload else {},
        remembered=unpack(job.remembered)[0] if job.remembered else {},
        round=job.round,
    )


def device_uuid(device: torch.device) -> str | None:
    """The UUID of a GPU or MIG device as ``nvidia-smi -L`` spells it; None for the CPU."""
    if device.type != "cuda":
        return None
    gpu = torch.cuda.get_device_properties(device)
    return f"{'MIG' if ' MIG ' in gpu.name else 'GPU'}-{gpu.uuid}"


class InProcess:
    """Runs one cohort after another in this process."""

    def __init__(
        self,
        train: Split,
        sizes: CohortSizes | None = None,
        *,
        timeout: float | None = None,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        """``timeout``, ``rates``: see :func:`time_limit`; who takes longer is named."""
        self._train = train
        self._sizes = sizes or CohortSizes()
        self._timeout, self._rates = timeout, rates or {}

    def run(
        self, jobs: Sequence[Job], events: Events
    ) -> Generator[tuple[Job, Upload | ClientFailed], None, None]:
        """Yields each job with what became of it; see :class:`fl.federation.Executor`."""
        for group in groups(jobs):
            while group:
                cohort = take(group, self._sizes.next(group[0]))
                for job in cohort:
                    client = job.client
                    events.emit(ClientStart(client=client.id, requested=asdict(client.request)))
                yield from self._run(cohort, events)

    def _run(
        self, cohort: list[Job], events: Events
    ) -> Iterator[tuple[Job, Upload | ClientFailed]]:
        ready = [job.ready() for job in cohort]
        results: list[bytes] = []
        try:
            limit = time_limit(cohort, self._timeout, self._rates)
            with _named_after(limit, cohort), reported_to(partial(_emit, events)):
                results = run_jobs(ready, self._train)
        except (Exception, SystemExit) as error:  # a client's code does not end the launch
            if len(cohort) == 1:
                yield cohort[0], _failed(cohort[0], error)
                return
            if isinstance(error, torch.OutOfMemoryError | MemoryError):
                self._sizes.overspent(cohort[0], len(cohort))
        if not results:  # by halves, which shows in the end which of them failed
            # Behind the clause above: the error holds on to what the cohort has in memory.
            rest = deque(cohort)
            while rest:
                size = min(-(-len(cohort) // 2), self._sizes.next(cohort[0]))
                yield from self._run(take(rest, size), events)
            return
        uploads = of_cohort(results)
        self._sizes.learn(cohort, readable_notes(uploads))
        yield from zip(cohort, uploads, strict=True)


@contextmanager
def _named_after(limit: float | None, cohort: Sequence[Job]) -> Iterator[None]:
    """Inside, says which clients are at work once the time has passed: nothing can end them."""
    if limit is None:
        yield
        return
    names = ", ".join(str(job.client.id) for job in cohort[:MOST_NAMED])
    more = f" and {len(cohort) - MOST_NAMED} more" if len(cohort) > MOST_NAMED else ""
    line = f"client {names}{more} has not finished within {limit:g} s; it goes on, as --runtime"
    timer = Timer(limit, log.warning, [f"{line} inprocess cannot end it: Ctrl-C ends the run"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _emit(events: Events, reports: Sequence[ClientProgress]) -> None:
    for event in reports:
        events.emit(event)


def _failed(job: Job, error: BaseException) -> ClientFailed:
    reason = f"{type(error).__name__}: {reason_of(error)}"
    failed = ClientFailed(job.client.id, job.client.model, reason)
    failed.__cause__ = error
    return failed
