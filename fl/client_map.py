"""One map over clients: its jobs run or are found in the store, and their uploads are received."""

import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap
from typing import Literal, TypedDict

import torch

from fl.errors import ClientFailed, ServerFailed, UserError
from fl.events import ClientDropped, ClientEnd, Events
from fl.exchange import Message, StoredTensors, Tensors, Upload, visible
from fl.federation import Client, Executor, Job, Memory, Update, UpdateStore
from fl.receiving import Check, largest_values, outliers, receive

OnFailure = Literal["stop", "drop"]
"""Whether a run stops, or drops the client and goes on, when a client has failed for good."""
Recipient = Literal["server", "test", "peers", "client"]
"""Whom a tensor of an upload is for: the method's server; the server's test alone; other clients;
or the client's own memory, so that no update has it."""
GoesTo = Callable[[Client, str], Recipient]
"""The recipient of a client's tensor of that name."""
Ended = tuple[Job, Upload | ClientFailed]
"""A job, and what became of it."""
MOST_THREADS = 3
"""To hash and write a small upload takes twice as long as to check it."""


class MapOptions(TypedDict, total=False):
    """Options of :meth:`fl.clients.Clients.map`."""

    only: Iterable[int] | None
    """Ids of the clients to map over; all without it."""
    broadcast: Tensors | None
    """What reaches every chosen client; counts as bytes down."""
    known: Tensors | None
    """What the clients have already, such as what they received earlier in this round: it reaches
    them beside the broadcast, and is not counted."""
    payloads: Mapping[int, Tensors] | None
    """What reaches one client each, by id; counts as bytes down, unless it is ``Relayed``."""
    remember: bool
    """Whether each client remembers all that its task returns, in place of what it remembered
    before: its later tasks find it as ``remembered``, wherever they run."""
    goes_to: Recipient | GoesTo
    """Whom an upload, or each tensor of it, is for: ``server`` without it, counted in ``bytes_up``;
    ``test``, what the test needs and the method does not, in ``bytes_for_test``; ``peers``, other
    clients, which get it as ``Relayed``, in ``bytes_peer``; ``client``, what stays with the client:
    it is not counted, and the update does not have it."""
    each: Callable[[Update], object] | None
    """Is called with each update when it has come, while other clients are at work; in any order.
    An exception that it raises ends the map."""
    check: Check | None
    """What the method needs of each upload, beside what all must be (:mod:`fl.receiving`): raises
    `ValueError` for one that it could not use, whose client then has failed. Without a task it is
    the training record's ``check_upload``."""


@dataclass(kw_only=True)
class ClientMap:
    """A map over clients, from its jobs to the updates, and what was counted on the way."""

    jobs: Mapping[int, Job]
    """By client id, in the clients' order."""
    members: Mapping[int, Client]
    """The clients as the server knows them: with their own training records."""
    executor: Executor
    store: UpdateStore
    events: Events
    on_failure: OnFailure
    dropped: dict[int, str]
    """Reasons by client id; clients that this map drops are added."""
    options: MapOptions
    counted: dict[int, Counter[Recipient]] = field(default_factory=dict)
    """Bytes of each client's upload, by whom they are for."""
    memories: dict[int, Memory] = field(default_factory=dict)
    """What the clients remember, if they are to."""

    def __post_init__(self) -> None:
        self._keys = self.store.keys(self.jobs)
        self._at_work: list[tuple[float, float]] = []
        self._largest: dict[int, Mapping[str, float]] = {}
        self._sent: dict[int, Mapping[str, float]] = {}

    def private(self, client: Client, name: str) -> bool:
        """Whether the client's tensor stays with it."""
        return self._recipient(client, name) == "client"

    def _recipient(self, client: Client, name: str) -> Recipient:
        goes_to = self.options.get("goes_to", "server")
        return goes_to if isinstance(goes_to, str) else goes_to(client, name)

    @property
    def busy_seconds(self) -> float:
        """Wall time in which at least one client was at work."""
        return covered(self._at_work)

    def collect(self) -> dict[int, Update]:
        """Updates by client id: of the store, or of clients that train now.

        Raises:
            ClientFailed: a client failed for good; with failures dropped, all clients of a role.
            ServerFailed: what is to be sent has NaN.
        """
        self._refuse_to_send_nan()
        updates = self._reuse(self.jobs)
        missing = {k: self._keys[k] for k in self.jobs if k not in updates}
        while missing:
            # Another run may be training some of them: train ours first, then look for theirs.
            with self.store.locked(missing) as ours:
                locked = {k: self.jobs[k] for k in ours}
                found = self._reuse(locked)
                updates |= found
                if left := [job for k, job in locked.items() if k not in found]:
                    updates |= self._train(left)
            missing = {k: key for k, key in missing.items() if k not in locked}
        self._refuse_outliers(updates)
        self._refuse_empty_roles()
        return updates

    def _reuse(self, jobs: Mapping[int, Job]) -> dict[int, Update]:
        """Those whose update the store has; one that would be refused today is made anew."""
        found = {}
        for k, job in jobs.items():
            upload = self.store.get(self._keys[k], k)
            if upload is None:
                continue
            _, outcome = self._checked(job, upload)
            if isinstance(outcome, Upload):
                found[k] = self._keep(job, outcome, reused=True)
        return found

    def _train(self, jobs: Sequence[Job]) -> dict[int, Update]:
        updates = {}
        with (
            closing(self.executor.run(jobs, self.events)) as ended,
            closing(store_each(starmap(self._checked, ended), self._put)) as finished,
        ):
            for job, outcome in finished:
                if isinstance(outcome, ClientFailed):
                    drop(outcome, self.on_failure, self.dropped, self.events)
                else:
                    updates[job.client.id] = self._keep(job, outcome, reused=False)
        lost = {job.client.id for job in jobs} - updates.keys() - self.dropped.keys()
        assert not lost, f"the executor lost clients {sorted(lost)}"
        return updates

    def _checked(self, job: Job, outcome: Upload | ClientFailed) -> Ended:
        """The same; of an upload that is refused its client's failure."""
        if isinstance(outcome, Upload):
            try:
                self._receive(job, outcome)
            except ValueError as refused:
                outcome = ClientFailed(job.client.id, job.client.model, str(refused))
        return job, outcome

    def _put(self, job: Job, upload: Upload) -> None:
        self.store.put(self._keys[job.client.id], job.client.id, upload)

    def _refuse_to_send_nan(self) -> None:
        """Raises `ServerFailed`: clients would be blamed for what they make of such weights."""
        for k, job in self.jobs.items():
            for name, value in self._began(job).items():
                if name.startswith("classifier.") and not math.isfinite(value):
                    raise ServerFailed(
                        f"the server's {name} has NaN or infinite values in round {job.round}; "
                        f"it was not sent to client {k}"
                    )

    def _refuse_outliers(self, updates: dict[int, Update]) -> None:
        """Refuses uploads with values far beyond those of the same training's other ones."""
        alike: dict[object, list[int]] = {}
        for k in updates:
            alike.setdefault(self.jobs[k].client.training, []).append(k)
        for own in alike.values():
            seen = [
                {n: v for n, v in self._largest[k].items() if not self.private(self.members[k], n)}
                for k in own
            ]
            for place, reason in outliers(seen).items():
                k = own[place]
                if path := self.store.file(self._keys[k]):  # which another run may be reading
                    path.with_suffix(".sha256").unlink(missing_ok=True)
                failed = ClientFailed(k, self.members[k].model, reason)
                drop(failed, self.on_failure, self.dropped, self.events)
                del updates[k]
                self.memories.pop(k, None)

    def _refuse_empty_roles(self) -> None:
        """Raises `ClientFailed` where all clients of a role were dropped. Those that a map did not
        choose are left: they may take part in the next round."""
        left = {member.role for k, member in self.members.items() if k not in self.dropped}
        for k, job in self.jobs.items():
            if job.client.role not in left:
                reason = f"{self.dropped[k]}; no {job.client.role} client is left"
                raise ClientFailed(k, job.client.model, reason)

    def _receive(self, job: Job, upload: Upload) -> None:
        """Checks the upload and notes its largest values; raises `ValueError` if it is refused.

        What stays with the client is checked as well: kept unchecked, a memory that its client
        cannot use would stop each later start of the run.
        """
        member, names = self.members[job.client.id], upload.forms
        private = bool(names) and all(self.private(member, name) for name in names)
        began = self._began(job)
        largest = receive(job, upload, self.options.get("check"), private=private, began=began)
        self._largest[job.client.id] = largest

    def _began(self, job: Job) -> dict[str, float]:
        """By name, the largest magnitude of what the client was sent, or else remembers."""
        began = dict(job.memory.largest) if job.memory else {}
        for message in (job.broadcast, job.payload):
            if message:
                if id(message) not in self._sent:  # one for many clients is read once
                    self._sent[id(message)] = largest_values(Message(message))
                began |= self._sent[id(message)]
        return began

    def _keep(self, job: Job, upload: Upload, *, reused: bool) -> Update:
        client, note = job.client, upload.note
        sent = self.counted[client.id] = Counter()
        for name, form in upload.forms.items():
            sent[self._recipient(self.members[client.id], name)] += form.num_bytes
        if not reused:
            self._at_work.append(note.span)
        self.events.emit(
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
                bytes_up=sent["server"],
                bytes_peer=sent["peers"],
                reused=reused,
                stats=note.stats,
                losses=note.losses,
            )
        )
        update = self._update(client.id, upload, reused=reused)
        if each := self.options.get("each"):
            each(update)
        return update

    def _update(self, k: int, upload: Upload, *, reused: bool) -> Update:
        """What the method gets: the tensors that are not private, read from the upload's file, or
        held in memory where there is none."""
        key, member = self._keys[k], self.members[k]
        path = self.store.file(key)
        if path is None and upload.mapped:
            upload = Upload(bytes(upload))  # what is mapped may be gone after its turn
        if self.options.get("remember"):
            read = partial(stored, self.store, key, k) if path else lambda: upload
            self.memories[k] = Memory(key, read, self._largest[k])
        forms = visible(upload.forms, lambda name: not self.private(member, name))
        return Update(
            client=member,
            tensors=StoredTensors(path or upload, forms, upload.counts, finite=True),
            stats=upload.note.stats,
            seconds=upload.note.seconds,
            reused=reused,
        )


def store_each(
    ended: Iterable[Ended], put: Callable[[Job, Upload], None]
) -> Generator[Ended, None, None]:
    """Yields what has ended, in its order, each upload once it is stored.

    Threads store only where torch may use several cores, and what another upload follows at once:
    after any other the next one may be long in coming. One upload more is being stored than there
    are threads, at most. What an end or an error finds at work is stored before it goes on.

    Args:
        ended: what may be stored.
        put: stores an upload; what it raises is raised here when it is the upload's turn.
    """
    threads = min(torch.get_num_threads(), MOST_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        at_work = deque[tuple[Ended, Callable[[], None]]]()
        for job, outcome in ended:
            follows, wait = False, lambda: None
            if isinstance(outcome, Upload):
                follows = outcome.followed and threads > 1
                if follows or at_work:
                    wait = pool.submit(put, job, outcome).result
                else:
                    put(job, outcome)
            at_work.append(((job, outcome), wait))
            while len(at_work) > (threads if follows else 0):
                first, wait = at_work.popleft()
                wait()
                yield first


def drop(
    failed: ClientFailed, on_failure: OnFailure, dropped: dict[int, str], events: Events
) -> None:
    """Adds the client to the dropped ones, with the reason, if a run may go on without it.

    Raises:
        ClientFailed: the run is to stop.
    """
    if on_failure == "stop":
        raise failed
    dropped[failed.client] = failed.reason
    events.emit(ClientDropped(client=failed.client, reason=failed.reason))


def stored(store: UpdateStore, key: str, client: int) -> Upload:
    """What a client remembers, from the store.

    Raises:
        UserError: it is gone or damaged.
    """
    upload = store.get(key, client)
    if upload is None:
        raise UserError(
            f"the stored state of client {client} is missing or damaged: {store.file(key)}; "
            "the run cannot continue: start again with --overwrite"
        )
    return upload


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
