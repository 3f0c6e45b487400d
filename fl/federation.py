"""The two nouns a method talks to: the clients, and the server.

``Clients.map`` is the only way data moves between a client and the server, so it is here that
bytes are counted, uploads are kept, and a client's failure gets its name. How and where a job
runs is the executor's business: in this process (:mod:`fl.executor`) or on Ray
(:mod:`cluster.clients`).
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fl.data.shard import Shard
from fl.errors import ClientFailed
from fl.events import Events
from fl.models import Decoder
from fl.training.config import LocalConfig
from fl.wire import Tensors, num_bytes, pack, unpack


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What everyone knows before training: the shape of the task, and the run's seed."""

    image_shape: tuple[int, int, int]
    num_classes: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a client asks of the machine. The GPU share is asked for only where there are GPUs."""

    cpus: float
    """Cores; also the number of threads, at least one."""
    gpus: float
    """Share of one GPU."""
    memory_bytes: int = 0
    """Bytes of main memory; 0 asks for none by name."""
    shared: bool = False
    """Light clients that ask for the same share a process, one after another."""

    @property
    def threads(self) -> int:
        """Threads a client computes with: fixed by its request, so that results are too."""
        return max(1, int(self.cpus))


@dataclass(frozen=True, kw_only=True)
class Client:
    """One client as the server knows it."""

    id: int
    role: str
    training: LocalConfig
    num_samples: int
    request: Request

    @property
    def model(self) -> str:
        """Name of the model the client trains."""
        return self.training.model


@dataclass(frozen=True, kw_only=True)
class TaskInput:
    """What a task sees: its client, that client's data, and what the server sent."""

    client: Client
    problem: Problem
    shard: Shard
    device: torch.device
    broadcast: Tensors
    payload: Tensors


@dataclass(frozen=True, kw_only=True)
class TaskOutput:
    """What a task returns: the tensors to upload, and a few figures about the training."""

    tensors: Tensors
    stats: dict[str, float] = field(default_factory=dict)


Task = Callable[[TaskInput], TaskOutput]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One task for one client: plain data, so that it can travel to another process."""

    task: Task
    client: Client
    problem: Problem
    indices: np.ndarray
    broadcast: bytes | None
    payload: bytes | None


@dataclass(frozen=True, kw_only=True)
class Update:
    """What the server received from one client."""

    client: Client
    tensors: Tensors
    stats: dict[str, float]
    seconds: float
    reused: bool


class Executor(Protocol):
    """Runs jobs somewhere and yields what became of each as it ends, in any order."""

    def run(
        self, jobs: Sequence[Job], events: Events
    ) -> Generator[tuple[Job, bytes | ClientFailed], None, None]:
        """Packed as :func:`fl.executor.run_job` does, or why there is nothing.

        Emits ``client_start`` as jobs start. Whether the others go on after a failure is for the
        caller to say, who closes the generator to end them.
        """
        ...


class UpdateStore(Protocol):
    """Keeps packed updates under a key made of all that determined them."""

    def key(self, job: Job) -> str:
        """The content key of what the job will upload."""
        ...

    def get(self, key: str, client: int) -> bytes | None:
        """The packed update of that key, or None."""
        ...

    def put(self, key: str, client: int, packed: bytes) -> None:
        """Keeps a packed update."""
        ...

    def claimed(self, keys: Mapping[int, str]) -> AbstractContextManager[list[int]]:
        """Some of these clients, at least one, whom nobody else is training meanwhile."""
        ...


PLACE = ("node", "device_uuid", "assigned", "peak_bytes")
"""What a client's note says of where it trained."""


OnFailure = Literal["stop", "drop"]
"""What becomes of a run one of whose clients failed for good."""


class Clients:
    """The federation's clients. One verb: map a task over all or some of them.

    ``dropped`` holds the clients that failed for good, with the reason, where ``on_failure`` lets
    the run go on without them.
    """

    def __init__(
        self,
        members: Sequence[Client],
        indices: Sequence[np.ndarray],
        problem: Problem,
        executor: Executor,
        store: UpdateStore,
        events: Events,
        *,
        on_failure: OnFailure = "stop",
    ) -> None:
        self.members = tuple(members)
        self.problem = problem
        self._indices = indices
        self._executor = executor
        self._store = store
        self._events = events
        self._on_failure = on_failure
        self.dropped: dict[int, str] = {}
        self.bytes_up = dict.fromkeys((c.id for c in members), 0)
        self.bytes_down = dict.fromkeys((c.id for c in members), 0)

    def map(
        self,
        task: Task,
        *,
        only: Iterable[int] | None = None,
        broadcast: Tensors | None = None,
        payloads: Mapping[int, Tensors] | None = None,
    ) -> list[Update]:
        """Runs ``task`` for each client (or those in ``only``) and returns updates by client id.

        ``broadcast`` reaches every chosen client, ``payloads`` one client each; both count as
        bytes down. A client that fails ends the map with its name, unless failures are to be
        dropped: then it is missing here and named in ``dropped``.

        Raises:
            ClientFailed: a client failed for good; with failures dropped, all clients of a role.
            ValueError: ``only`` names a client that does not exist, or ``payloads`` one that is
                not chosen.
        """
        everyone = {c.id for c in self.members}
        chosen = everyone if only is None else set(only)
        payloads = payloads or {}
        strangers = (chosen - everyone) | (payloads.keys() - chosen)
        if strangers:
            raise ValueError(f"no such clients to map over: {sorted(strangers)}")
        sent = pack(broadcast, {}) if broadcast else None
        jobs = {}
        for client in self.members:
            if client.id not in chosen:
                continue
            own = payloads.get(client.id, {})
            self.bytes_down[client.id] += num_bytes(broadcast or {}) + num_bytes(own)
            jobs[client.id] = Job(
                task=task,
                client=client,
                problem=self.problem,
                indices=self._indices[client.id],
                broadcast=sent,
                payload=pack(own, {}) if own else None,
            )
        with self._events.phase("local"):
            updates = self._collect(jobs)
        return [updates[k] for k in sorted(jobs) if k in updates or k not in self.dropped]

    def _collect(self, jobs: dict[int, Job]) -> dict[int, Update]:
        keys = {k: self._store.key(job) for k, job in jobs.items()}
        updates = self._reuse(jobs, keys)
        missing = {k: keys[k] for k in jobs if k not in updates}
        while missing:
            # Another run may be training some of them: ours first, then what became of theirs.
            with self._store.claimed(missing) as ours:
                claimed = {k: jobs[k] for k in ours}
                found = self._reuse(claimed, keys)
                updates |= found
                if left := [job for k, job in claimed.items() if k not in found]:
                    updates |= self._train(left, keys)
            missing = {k: key for k, key in missing.items() if k not in claimed}
        self._refuse_empty_roles(jobs, updates)
        return updates

    def _reuse(self, jobs: Mapping[int, Job], keys: Mapping[int, str]) -> dict[int, Update]:
        found = ((job, self._store.get(keys[k], k)) for k, job in jobs.items())
        return {
            job.client.id: self._receive(job, packed, reused=True)
            for job, packed in found
            if packed is not None
        }

    def _train(self, jobs: Sequence[Job], keys: Mapping[int, str]) -> dict[int, Update]:
        updates = {}
        with closing(self._executor.run(jobs, self._events)) as ended:
            for job, outcome in ended:
                if isinstance(outcome, ClientFailed):
                    self._drop(outcome)
                    continue
                self._store.put(keys[job.client.id], job.client.id, outcome)
                updates[job.client.id] = self._receive(job, outcome, reused=False)
        return updates

    def _drop(self, failed: ClientFailed) -> None:
        if self._on_failure == "stop":
            raise failed
        self.dropped[failed.client] = failed.reason
        self._events.emit("client_dropped", client=failed.client, reason=failed.reason)

    def _refuse_empty_roles(self, jobs: dict[int, Job], updates: dict[int, Update]) -> None:
        left = {update.client.role for update in updates.values()}
        for k, job in jobs.items():
            if k in self.dropped and job.client.role not in left:
                reason = f"{self.dropped[k]}; no {job.client.role} client is left"
                raise ClientFailed(k, job.client.model, reason)

    def _receive(self, job: Job, packed: bytes, *, reused: bool) -> Update:
        client = job.client
        tensors, note = unpack(packed)
        up = num_bytes(tensors)
        self.bytes_up[client.id] += up
        self._events.emit(
            "client_end",
            client=client.id,
            role=client.role,
            model=client.model,
            num_samples=client.num_samples,
            seconds_training=note["seconds"],
            # A store may hold updates from before a figure was noted.
            **{name: note.get(name) for name in PLACE},
            bytes_up=up,
            reused=reused,
            **note["stats"],
        )
        return Update(
            client=client,
            tensors=tensors,
            stats=note["stats"],
            seconds=note["seconds"],
            reused=reused,
        )


Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Top-1 accuracy on the test split, 0 to 1, and the same per class (None: no test sample)."""

    accuracy: float
    per_class: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """What a fit leaves: the loss of every step, and the test accuracy after every epoch."""

    step_losses: list[float]
    epochs: list[Evaluation]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Labelled rows that lie with the server's ranks: a handle, which only their server reads.

    Rows count through the ranks: those of the first rank come first.
    """

    columns: dict[str, tuple[Any, ...]]
    """Each column's blocks, one for each rank."""
    counts: tuple[int, ...]
    """Rows of each block."""

    def __len__(self) -> int:
        return sum(self.counts)

    def only(self, *names: str) -> "Samples":
        """These columns alone."""
        return Samples(columns={n: self.columns[n] for n in names}, counts=self.counts)


class Server(Protocol):
    """The server, over however many ranks. What it computes does not depend on their number."""

    problem: Problem
    device: torch.device
    """Where models are built; the ranks move them to their own."""
    events: Events

    def sample(
        self, decoders: Mapping[int, Decoder], allocation: np.ndarray, *, latent: int
    ) -> Samples:
        """Draws from each client's decoder as often as its row (of its classes) says.

        Columns ``images`` (N, C, H, W) in [0, 1] and ``labels`` (N,).
        """
        ...

    def apply(self, samples: Samples, column: str, function: Callable[[Tensor], Tensor]) -> Samples:
        """The samples with ``function`` (of some rows, row by row) applied to a column."""
        ...

    def nearest(self, samples: Samples, keep: float) -> Tensor:
        """Indices (M,), ascending, of the share of each class nearest to the class's mean."""
        ...

    def take(self, samples: Samples, indices: Tensor) -> Samples:
        """The samples at ``indices``, ascending."""
        ...

    def teach(self, samples: Samples, teachers: Iterable[nn.Module]) -> Samples:
        """Adds ``teacher_logits`` (N, classes), the mean of the teachers': asked once for all."""
        ...

    def fetch(self, samples: Samples, column: str) -> Tensor:
        """A column, brought together here."""
        ...

    def fit(
        self, model: nn.Module, data: Samples | Batch, *, loss: Loss, config: Any, stage: str
    ) -> FitResult:
        """Trains ``model`` in place on samples, or on tensors of one length that are here."""
        ...

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Accuracy on the test split, which no method ever sees."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a method returns: the global model, how it came about, and pictures of the way."""

    model: nn.Module
    start: Evaluation
    """The initial global model, before any training at the server."""
    epochs: list[Evaluation]
    synthetic: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    """Further JSON values for the result."""
