"""The federation's clients, as a method sees them: a task mapped over all or some of them.

:meth:`Clients.map` is the only way data moves between a client and the server, so it is with a map
that bytes are counted, uploads are stored, and failed clients are recorded (:mod:`fl.client_map`).
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TypeVar, Unpack

import numpy as np
from torch import Tensor

from fl.client_map import ClientMap, MapOptions, OnFailure, drop, stored
from fl.errors import ClientFailed, UserError
from fl.events import Events
from fl.exchange import Tensors, num_bytes, pack
from fl.federation import (
    Client,
    Executor,
    Job,
    Memory,
    RunSpec,
    Task,
    Training,
    Update,
    UpdateStore,
)
from fl.receiving import largest_values
from fl.scoring import Build, OwnTests, answered, count_answers, evaluation
from fl.server import Evaluation

Key = TypeVar("Key")
Value = TypeVar("Value")


class Relayed(dict[str, Tensor]):
    """A payload that other clients sent: it was counted then, and is not counted again."""


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
        tests: OwnTests | None = None,
    ) -> None:
        """``tests``: the clients' own test samples, where they are to be scored."""
        self.members = tuple(members)
        self.run_spec = run_spec
        self._indices = indices
        self._executor = executor
        self._store = store
        self._events = events
        self._on_failure = on_failure
        self._tests = tests
        self.dropped: dict[int, str] = {}
        self.bytes_up = dict.fromkeys((c.id for c in members), 0)
        self.bytes_down = dict.fromkeys((c.id for c in members), 0)
        self.bytes_for_test = dict.fromkeys((c.id for c in members), 0)
        self.bytes_peer = dict.fromkeys((c.id for c in members), 0)
        """What each client sent to other clients."""
        self.round = 1
        """The present round; see :mod:`fl.rounds`."""
        self.busy_seconds = 0.0
        """Wall time in which at least one client was at work."""
        self._memories: dict[int, Memory] = {}

    @property
    def may_drop(self) -> bool:
        """Whether the run goes on without a client that has failed for good."""
        return self._on_failure == "drop"

    def train(self, by: Training | None = None, **options: Unpack[MapOptions]) -> list[Update]:
        """Has each client run the task of its training record, or of ``by`` in place of it; else as
        :meth:`map`."""
        options["check"] = options.get("check") or trained
        return self._map(None, by, options)

    def map(self, task: Task, **options: Unpack[MapOptions]) -> list[Update]:
        """Runs ``task`` for each client, or some, and returns updates by client id.

        A client that fails ends the map with an error that names it, unless failures are to be
        dropped: then it is missing in the result, named in ``dropped``, and left out of later maps.
        The options are those of :class:`MapOptions`.

        Raises:
            ClientFailed: a client failed for good; with failures dropped, all clients of a role.
            UserError: what a client remembers is gone or damaged.
            ValueError: ``only`` names a client that does not exist, or ``payloads`` one that is not
                chosen.
        """
        return self._map(task, None, options)

    def _map(self, task: Task | None, by: Training | None, options: MapOptions) -> list[Update]:
        chosen, payloads = self._chosen(options), options.get("payloads") or {}
        broadcast = options.get("broadcast") or {}
        common = {**(options.get("known") or {}), **broadcast}
        if task is None and by is None:
            one_of_each = {self.members[k].training: k for k in sorted(chosen, reverse=True)}
            for training, k in one_of_each.items():
                training.check_sent({*common, *payloads.get(k, ())}, self.round)
        sent = pack(common, {}) if common else None
        for k in chosen:
            own = payloads.get(k, {})
            counted = {} if isinstance(own, Relayed) else own
            self.bytes_down[k] += num_bytes(broadcast) + num_bytes(counted)
        remember = options.get("remember", False)
        current = ClientMap(
            jobs=self._jobs(task, chosen, sent, payloads, by=by, remember=remember),
            members={c.id: c for c in self.members},
            executor=self._executor,
            store=self._store,
            events=self._events,
            on_failure=self._on_failure,
            dropped=self.dropped,
            options=options,
        )
        with self._events.phase("local"):
            updates = current.collect()
        self.busy_seconds += current.busy_seconds
        for k in updates:
            self.bytes_up[k] += current.counted[k]["server"]
            self.bytes_peer[k] += current.counted[k]["peers"]
            self.bytes_for_test[k] += current.counted[k]["test"]
        self._memories |= current.memories
        return [updates[k] for k in sorted(updates)]

    def to_send(self, weights: dict[Key, Value]) -> dict[Key, Value]:
        """The weights, or each client's, that clients must be sent to start from: none in the first
        round, whose common start they draw from the seed."""
        return weights if self.round > 1 else {}

    def score(self, build: Build, *, payloads: Mapping[int, Tensors] | None = None) -> Evaluation:
        """Accuracy of the model that ``build`` makes for each client, on the client's test samples.

        ``build`` is given what a task is given: its client, shard and memory, and its payload.
        It sees no test sample, and no byte is counted. Clients without test samples, and those
        that were dropped, are left out of the mean.

        Raises:
            ClientFailed: a client failed for good; with failures dropped, all of them.
            UserError: no client has test samples, or what one remembers is gone or damaged.
        """
        tests = self._tests
        if tests is None or not tests.tested:
            raise UserError("no client has test samples of its own: raise partition.test_fraction")
        task = partial(count_answers, build)
        chosen = tests.tested - self.dropped.keys()
        jobs = self._jobs(task, chosen, None, payloads or {})
        jobs = {k: replace(job, test=tests.indices[k]) for k, job in jobs.items()}
        hits: dict[int, Tensor] = {}
        failed: ClientFailed | None = None
        with self._events.phase("scoring"):
            for job, outcome in answered(list(jobs.values()), self._executor, self._events, tests):
                if isinstance(outcome, ClientFailed):
                    drop(outcome, self._on_failure, self.dropped, self._events)
                    failed = outcome
                else:
                    hits[job.client.id] = outcome
        if failed and not hits:
            raise failed
        return evaluation(hits, tests)

    def refuse(self, update: Update, reason: str) -> None:
        """Its client has failed, though its upload was received: drops it, or ends the run.

        Raises:
            ClientFailed: the run is to stop.
        """
        failed = ClientFailed(update.client.id, update.client.model, reason)
        drop(failed, self._on_failure, self.dropped, self._events)

    def end_round(self) -> None:
        """Ends the round, once its outcome is saved: its uploads are needed no longer."""
        self._store.end_round(self.round, set(self.remembered.values()))

    @property
    def remembered(self) -> dict[int, str]:
        """The store's keys of what the clients remember, by client id."""
        return {k: memory.key for k, memory in self._memories.items()}

    def recall(self, remembered: Mapping[int, str]) -> None:
        """Has the clients remember again what they did when :attr:`remembered` was saved.

        Raises:
            UserError: what a client remembers is gone or damaged.
        """
        for k, key in remembered.items():
            read = partial(stored, self._store, key, k)
            self._memories[k] = Memory(key, read, largest_values(read()))

    def _chosen(self, options: MapOptions) -> Set[int]:
        """The clients to map over, without those that were dropped."""
        existing, only = {c.id for c in self.members}, options.get("only")
        chosen = existing if only is None else set(only)
        missing = (chosen - existing) | ((options.get("payloads") or {}).keys() - chosen)
        if missing:
            raise ValueError(f"no such clients to map over: {sorted(missing)}")
        return chosen - self.dropped.keys()

    def _jobs(
        self,
        task: Task | None,
        chosen: Set[int],
        broadcast: bytes | None,
        payloads: Mapping[int, Tensors],
        *,
        by: Training | None = None,
        remember: bool = False,
    ) -> dict[int, Job]:
        """A job for each chosen client, in the members' order."""
        packed: dict[int, bytes] = {}  # a payload for several clients is packed once
        jobs = {}
        for member in self.members:
            if member.id in chosen:
                memory = self._memories.get(member.id)
                how = by or member.trains_by
                if task is None and self.round == 1 and memory is None:
                    how = how.first_round
                client = replace(member, training=how, changes=())
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
                    memory=memory,
                    round=self.round,
                    of_this_run=isinstance(own, Relayed) or (memory is not None and remember),
                )
        return jobs


def trained(update: Update, run_spec: RunSpec) -> None:
    """Checks what a client's training uploads, by its training record.

    Raises:
        ValueError: it is not what such a training gives.
    """
    update.client.training.check_upload(update, run_spec)
