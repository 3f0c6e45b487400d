"""The federation's clients, as a method sees them: a task mapped over all or some of them.

:meth:`Clients.map` is the only way data moves between a client and the server, so it is here that
bytes are counted, uploads are stored, and failed clients are recorded.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import closing
from typing import Literal

import numpy as np

from fl.client_note import ClientNote
from fl.errors import ClientFailed
from fl.events import ClientDropped, ClientEnd, Events
from fl.federation import Client, Executor, Job, RunSpec, Task, Update, UpdateStore
from fl.wire import (
    StoredTensors,
    Tensors,
    num_bytes,
    num_packed_bytes,
    pack,
    unpack,
)

OnFailure = Literal["stop", "drop"]
"""Whether a run stops, or drops the client and goes on, when a client has failed for good."""


class Clients:
    """The federation's clients, with two operations: have them train, or map any task over them.

    ``dropped`` holds the clients that failed for good, with the reason, where ``on_failure`` lets
    the run go on without them.
    """

    def __init__(
        self,
        members: Sequence[Client],
        indices: Sequence[np.ndarray],
        run_spec: RunSpec,
        executor: Executor,
        store: UpdateStore,
        events: Events,
        *,
        on_failure: OnFailure = "stop",
    ) -> None:
        self.members = tuple(members)
        self.run_spec = run_spec
        self._indices = indices
        self._executor = executor
        self._store = store
        self._events = events
        self._on_failure = on_failure
        self.dropped: dict[int, str] = {}
        self.bytes_up = dict.fromkeys((c.id for c in members), 0)
        self.bytes_down = dict.fromkeys((c.id for c in members), 0)
        self.round = 1
        """The present round; see :mod:`fl.rounds`."""
        self.busy_seconds = 0.0
        """Wall time in which at least one client was at work."""
        self._at_work: list[tuple[float, float]] = []

    def train(
        self,
        *,
        only: Iterable[int] | None = None,
        broadcast: Tensors | None = None,
        already_sent: Tensors | None = None,
        payloads: Mapping[int, Tensors] | None = None,
    ) -> list[Update]:
        """Has each client run the task of its own training record; else as :meth:`map`."""
        return self.map(
            None, only=only, broadcast=broadcast, already_sent=already_sent, payloads=payloads
        )

    def map(
        self,
        task: Task | None,
        *,
        only: Iterable[int] | None = None,
        broadcast: Tensors | None = None,
        already_sent: Tensors | None = None,
        payloads: Mapping[int, Tensors] | None = None,
    ) -> list[Update]:
        """Runs ``task`` for each client (or those in ``only``) and returns updates by client id.

        Without a task each client runs that of its own training record.

        ``broadcast`` reaches every chosen client, ``payloads`` one client each; both count as bytes
        down. ``already_sent`` is what the clients received earlier in this round and still have: it
        reaches them beside the broadcast, and is not counted again. A client that fails ends the
        map with an error that names it, unless failures are to be dropped: then it is missing in
        the result, named in ``dropped``, and left out of later maps.

        Raises:
            ClientFailed: a client failed for good; with failures dropped, all clients of a role.
            ValueError: ``only`` names a client that does not exist, or ``payloads`` one that is
                not chosen.
        """
        existing = {c.id for c in self.members}
        chosen = existing if only is None else set(only)
        payloads = payloads or {}
        missing = (chosen - existing) | (payloads.keys() - chosen)
        if missing:
            raise ValueError(f"no such clients to map over: {sorted(missing)}")
        common = {**(already_sent or {}), **(broadcast or {})}
        sent = pack(common, {}) if common else None
        for k in chosen - self.dropped.keys():
            self.bytes_down[k] += num_bytes(broadcast or {}) + num_bytes(payloads.get(k, {}))
        jobs = self._jobs(task, chosen - self.dropped.keys(), sent, payloads)
        with self._events.phase("local"):
            updates = self._collect(jobs)
        self.busy_seconds += covered(self._at_work)
        self._at_work.clear()
        return [updates[k] for k in sorted(jobs) if k in updates or k not in self.dropped]

    def _jobs(
        self,
        task: Task | None,
        chosen: Set[int],
        broadcast: bytes | None,
        payloads: Mapping[int, Tensors],
    ) -> dict[int, Job]:
        """A job for each chosen client, in the members' order."""
        packed: dict[int, bytes] = {}  # a payload for several clients is packed once
        jobs = {}
        for client in self.members:
            if client.id in chosen:
                own = payloads.get(client.id, {})
                if own and id(own) not in packed:
                    packed[id(own)] = pack(own, {})
                jobs[client.id] = Job(
                    task=task or client.training.task,
                    client=client,
                    run_spec=self.run_spec,
                    indices=self._indices[client.id],
                    broadcast=broadcast,
                    payload=packed.get(id(own)),
                    round=self.round,
                )
        return jobs

    def end_round(self) -> None:
        """Ends the round, once its outcome is saved: its uploads are needed no longer."""
        self._store.end_round(self.round)

    def _collect(self, jobs: dict[int, Job]) -> dict[int, Update]:
        keys = {k: self._store.key(job) for k, job in jobs.items()}
        updates = self._reuse(jobs, keys)
        missing = {k: keys[k] for k in jobs if k not in updates}
        while missing:
            # Another run may be training some of them: train ours first, then look for theirs.
            with self._store.locked(missing) as ours:
                locked = {k: jobs[k] for k in ours}
                found = self._reuse(locked, keys)
                updates |= found
                if left := [job for k, job in locked.items() if k not in found]:
                    updates |= self._train(left, keys)
            missing = {k: key for k, key in missing.items() if k not in locked}
        self._refuse_empty_roles(jobs, updates)
        return updates

    def _reuse(self, jobs: Mapping[int, Job], keys: Mapping[int, str]) -> dict[int, Update]:
        found = ((job, self._store.get(keys[k], k)) for k, job in jobs.items())
        return {
            job.client.id: self._receive(job, keys[job.client.id], packed, reused=True)
            for job, packed in found
            if packed is not None
        }

    def _train(self, jobs: Sequence[Job], keys: Mapping[int, str]) -> dict[int, Update]:
        updates = {}
        with closing(self._executor.run(jobs, self._events)) as ended:
            for job, outcome in ended:
                k = job.client.id
                if isinstance(outcome, ClientFailed):
                    self._drop(outcome)
                    continue
                self._store.put(keys[k], k, outcome)
                updates[k] = self._receive(job, keys[k], outcome, reused=False)
        return updates

    def _drop(self, failed: ClientFailed) -> None:
        if self._on_failure == "stop":
            raise failed
        self.dropped[failed.client] = failed.reason
        self._events.emit(ClientDropped(client=failed.client, reason=failed.reason))

    def _refuse_empty_roles(self, jobs: dict[int, Job], updates: dict[int, Update]) -> None:
        left = {update.client.role for update in updates.values()}
        for k, job in jobs.items():
            if k in self.dropped and job.client.role not in left:
                reason = f"{self.dropped[k]}; no {job.client.role} client is left"
                raise ClientFailed(k, job.client.model, reason)

    def _receive(self, job: Job, key: str, packed: bytes, *, reused: bool) -> Update:
        client, note = job.client, ClientNote.of(packed)
        up = num_packed_bytes(packed)
        self.bytes_up[client.id] += up
        if not reused:
            self._at_work.append(note.span)
        self._events.emit(
            ClientEnd(
                client=client.id,
                role=client.role,
                model=client.model,
                num_samples=client.num_samples,
                round=job.round,
                seconds_training=note.seconds,
                node=note.node,
                device_uuid=note.device_uuid,
                assigned=note.assigned,
                peak_bytes=note.peak_bytes,
                bytes_up=up,
                reused=reused,
                stats=note.stats,
            )
        )
        path = self._store.file(key)
        return Update(
            client=client,
            tensors=StoredTensors(path) if path else unpack(packed)[0],
            stats=note.stats,
            seconds=note.seconds,
            reused=reused,
        )


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of these spans, each from a begin to an end.

    >>> covered([(0.0, 2.0), (5.0, 6.0), (1.0, 3.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
