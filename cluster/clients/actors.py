"""The clients' processes: Ray actors, each in a slot of a bundle."""

import gc
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError

from cluster.clients.extensions import (
    add_models,
    by_value,
    modules_of,
    send_methods_by_value,
)
from cluster.clients.memory_cap import capped
from cluster.hardware.bundles import Bundles
from cluster.scheduling.capacity import FreeCapacity, Need, Slot, need_of
from fl.data.datasets import Split
from fl.data.lazy import Lazy
from fl.errors import UserError, reason_of
from fl.events import ClientProgress, reported_to
from fl.exchange import Message
from fl.executor import run_jobs
from fl.federation import Job, Request
from fl.process import let_go, return_freed_memory

# Messages from the driver to clients' processes, through Ray's object store.
#
# What a process has read or written of the object store stays mapped in it, and counts as its
# memory, until it lets go of the pages: the messages of all clients would add up.

LARGE = 1 << 20
"""Bytes from which a message is put into the object store by itself. Smaller ones travel with their
job."""
References = Sequence[Any]
"""Where the pieces of a message lie in the object store, in order."""


@dataclass(frozen=True)
class Sent:
    """A job without its large messages, and where these lie in the object store, by field."""

    job: Job
    messages: Mapping[str, References]

    def received(self) -> Job:
        """The job with its messages; called in the client's process."""
        found: dict[str, Any] = {
            name: b"".join(ray.get(list(pieces))) for name, pieces in self.messages.items()
        }
        return replace(self.job, **found)


class Sender:
    """Puts jobs' messages into the object store: a broadcast once, for all clients it is for."""

    def __init__(self) -> None:
        self._broadcast: tuple[bytes | None, References] = None, ()

    def send(self, job: Job) -> Sent:
        """The job as it travels, with what its client remembers read from the store."""
        packed = {"broadcast": job.broadcast, "payload": job.payload, "remembered": job.remembered}
        messages = {name: Message(own) for name, own in packed.items() if own}
        if job.memory is not None:
            messages["remembered"] = job.memory.read()
        small: dict[str, Any] = dict.fromkeys(packed)
        large: dict[str, References] = {}
        for name, message in messages.items():
            if len(message.content) < LARGE:
                small[name] = bytes(message)
            elif name != "broadcast":
                large[name] = put(message)
            else:
                if self._broadcast[0] is not job.broadcast:
                    self._broadcast = job.broadcast, put(message)
                large[name] = self._broadcast[1]
        return Sent(replace(job, memory=None, **small), large)


def put(message: Message) -> References:
    """Puts a message into the object store, without a trace in this process's memory."""
    references = []
    for piece in message.pieces():
        references.append(ray.put(np.frombuffer(piece, np.uint8)))
        let_go(ray.get(references[-1]))
    return references


COLUMNS = ("images", "labels", "targets", "augment", "domains")
"""What clients need of the training split."""


def _placed(train: Split) -> list[Any]:
    """The training split's columns in the object store, but for those that it has not.

    Raises:
        UserError: the user's data set object cannot be sent to another process.
    """
    columns = (getattr(train, name) for name in COLUMNS)
    if isinstance(train.images, Lazy):
        by_value(type(own.data).__module__ for own in train.images.sources if hasattr(own, "data"))
    if train.augment is not None:
        by_value([getattr(train.augment.function, "__module__", "")])
    try:
        return [column if column is None else ray.put(column) for column in columns]
    except TypeError as error:  # an open file, a lock
        raise UserError(
            f"the data cannot be sent to clients' processes: {reason_of(error)[:200]}; open files "
            'in __getitem__, or use runtime="inprocess"'
        ) from None


# Clients' progress on its way to the driver. Display only: nothing waits for it.

MOST_PENDING = 100
"""Calls that may wait for a slow inbox; further reports of a process are lost."""


class _Mailbox:
    """An actor that holds each client's latest report until the driver takes it."""

    def __init__(self) -> None:
        self._latest: dict[int, ClientProgress] = {}

    def put(self, reports: Sequence[ClientProgress]) -> None:
        self._latest |= {report.client: report for report in reports}

    def take(self) -> list[ClientProgress]:
        found, self._latest = list(self._latest.values()), {}
        return found


class Inbox:
    """The driver's end. It asks for the next reports and goes on; an answer is read later."""

    def __init__(self) -> None:
        actor: Any = ray.remote(_Mailbox)
        self.mailbox = actor.options(num_cpus=0, max_pending_calls=MOST_PENDING).remote()
        self._asked: Any = self.mailbox.take.remote()

    def read(self, clients: Set[int]) -> Iterator[ClientProgress]:
        """The reports of these clients that have arrived; none once the actor is gone."""
        if not ray.wait([self._asked], timeout=0)[0]:
            return
        with suppress(RayError):
            reports = ray.get(self._asked)
            self._asked = self.mailbox.take.remote()
            yield from (report for report in reports if report.client in clients)

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self.mailbox)


def send(mailbox: Any, reports: Sequence[ClientProgress]) -> None:
    """Sends reports from a client's process, without waiting; they are lost if that fails."""
    with suppress(RayError):
        mailbox.put.remote(reports)


class ClientActor:
    """A client's process. It sees only the devices that Ray assigned to it."""

    def __init__(self, mailbox: Any = None) -> None:
        """``mailbox``: an :class:`Inbox`'s."""
        self._progress = partial(send, mailbox)
        self._size = 0
        # What was imported stays, so the garbage collector need not scan it again and again.
        gc.freeze()

    def learn(self, models: bytes | None) -> None:
        """Registers the user's models as they are in the driver now: see :mod:`.extensions`."""
        add_models(models)

    def run(self, sent: list[Sent], size: int, *columns: Any) -> list[np.ndarray]:
        """Runs cohorts of that size; the training split comes from the store without a copy."""
        if size < self._size:  # what a larger cohort took is not needed again
            return_freed_memory()
        self._size = size
        train = Split(**dict(zip(COLUMNS, columns, strict=False)))
        assigned = ray.get_runtime_context().get_assigned_resources()
        node = os.environ.get("SLURMD_NODENAME")  # several of a job's nodes may share a host
        jobs = [each.received() for each in sent]
        packed: list[bytes] = []
        try:
            for first in range(0, len(jobs), size):
                with capped(jobs[0].client.request), reported_to(self._progress):
                    packed += run_jobs(jobs[first : first + size], train, node, assigned)
            # Ray writes arrays into its store once; bytes it would pickle first.
            return [np.frombuffer(p, np.uint8) for p in packed]
        finally:
            if torch.cuda.is_available():  # for what uses the GPU next: a client, or the server
                torch.cuda.empty_cache()


@dataclass(eq=False)
class Process:
    """A client process, its slot, and what it holds there, at work or idle."""

    actor: Any
    slot: Slot
    request: Request
    idle: bool = False
    models: bytes | None = None
    """The user's models that it was last sent."""


class Actors:
    """Starts processes, gives them work, and ends them; the training split lies once in the
    object store.

    An idle process holds what it asked for, until another one needs its capacity.
    """

    def __init__(self, train: Split, bundles: Bundles, mailbox: Any = None) -> None:
        self._columns = _placed(train)
        self._sender = Sender()
        self._mailbox = mailbox
        self.models: bytes | None = None
        """The user's models as they are in this map: what they refer to may change between two."""
        send_methods_by_value()
        self._bundles = bundles
        self._capacity = {bundle.name: bundle for bundle in bundles.all}
        self.processes: list[Process] = []

    def submit(self, process: Process, jobs: list[Job], size: int) -> Any:
        """Starts the jobs in the process and returns the reference to their results."""
        by_value(chain.from_iterable(map(modules_of, jobs)))
        if process.models != self.models:
            process.actor.learn.remote(self.models)  # before what it is told next
            process.models = self.models
        sent = [self._sender.send(job) for job in jobs]
        return process.actor.run.remote(sent, size, *self._columns)

    def hire(self, slot: Slot, request: Request) -> Process:
        """A process in that slot with what the client asks for: an idle one, else a new one."""
        for process in self.processes:
            if process.idle and (process.slot, process.request) == (slot, request):
                process.idle = False
                return process
        self._end_idle(slot, request)
        actor = ray.remote(ClientActor).options(
            num_cpus=request.cpus,
            num_gpus=request.gpus if slot.gpu is not None else 0,
            memory=request.memory_bytes or None,
            max_restarts=0,
            scheduling_strategy=self._bundles.strategy(slot.bundle),
        )
        process = Process(actor.remote(self._mailbox), slot, request)
        self.processes.append(process)
        return process

    def end(self, process: Process) -> None:
        """Ends the process, whatever it is doing."""
        self.processes.remove(process)
        ray.kill(process.actor)

    def end_all(self, *, bundle: str | None = None, but_idle: bool = False) -> None:
        """Ends all processes, or those of a bundle, or all that are at work."""
        for process in list(self.processes):
            if bundle in (None, process.slot.bundle) and not (but_idle and process.idle):
                self.end(process)

    def _end_idle(self, slot: Slot, request: Request) -> None:
        """Ends idle processes of the bundle, the oldest first, until another one fits."""
        there = [p for p in self.processes if p.slot.bundle == slot.bundle]
        free = FreeCapacity(self._capacity[slot.bundle])
        for process in there:
            free.take(self._held(process.request), process.slot)
        for process in there:
            if free.fits(self._held(request), slot):
                return
            if process.idle:
                free.give(self._held(process.request), process.slot)
                self.end(process)

    def _held(self, request: Request) -> Need:
        """What a process holds while it is idle too: no wave."""
        with_gpus = any(bundle.gpus for bundle in self._capacity.values())
        return need_of(request, with_gpus=with_gpus)._replace(waves=0)
