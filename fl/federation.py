"""What crosses between the two nouns a method talks to, the clients and the server; and the server.

The other noun is :class:`fl.clients.Clients`. How and where a client's job runs is the executor's
business: in this process (:mod:`fl.executor`) or on Ray (:mod:`cluster.clients.executor`).
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fl.data.shard import Shard
from fl.errors import ClientFailed
from fl.events import Events
from fl.models import Decoder
from fl.seeding import in_round, torch_generator
from fl.training.config import LocalConfig
from fl.wire import (
    Tensors,
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What everyone knows before training: the shape of the task, and the run's seed."""

    image_shape: tuple[int, int, int]
    num_classes: int
    seed: int
    domains: tuple[str, ...] = ()
    """Names of the domains, where the data set has such: accuracy is then told for each."""

    def groups(self, test: Shard) -> Tensor:
        """The group in which each test sample's answer is counted, int64 (n,): domain and class."""
        if test.domains is None:
            return test.labels
        return test.domains * self.num_classes + test.labels

    @property
    def num_groups(self) -> int:
        """Groups in which answers are counted."""
        return max(1, len(self.domains)) * self.num_classes


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
    round: int = 1

    def stream(self, purpose: str) -> torch.Generator:
        """The client's own random numbers for a purpose, others in every round."""
        named = in_round(purpose, self.round)
        return torch_generator(self.problem.seed, named, self.client.id)


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
    round: int = 1


@dataclass(frozen=True, kw_only=True)
class Update:
    """What the server received from one client."""

    client: Client
    tensors: Mapping[str, Tensor]
    """What the client uploaded; read from its file when it is used, where there is one."""
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

    def file(self, key: str) -> Path | None:
        """The file that holds a kept update, or None where the update must be held in memory."""
        ...

    def claimed(self, keys: Mapping[int, str]) -> AbstractContextManager[list[int]]:
        """Some of these clients, at least one, whom nobody else is training meanwhile."""
        ...

    def end_round(self, number: int) -> None:
        """What was uploaded up to this round is not needed any more to go on."""
        ...


Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Top-1 accuracy on the test split, 0 to 1, and the same per class (None: no test sample)."""

    accuracy: float
    per_class: tuple[float | None, ...]
    per_domain: tuple[float | None, ...] = ()
    """The same per domain, where there are any."""


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """What a fit leaves: the loss of every step, and the test accuracy after every tested epoch."""

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
    round: int
    """The round that is played; see :mod:`fl.rounds`."""

    def sample(
        self, decoders: Mapping[int, Decoder], allocation: np.ndarray, *, latent: int
    ) -> Samples:
        """Draws from each client's decoder as often as its row (of its classes) says.

        Columns ``images`` (N, C, H, W) in [0, 1] and ``labels`` (N,).
        """

    def apply(self, samples: Samples, column: str, function: Callable[[Tensor], Tensor]) -> Samples:
        """The samples with ``function`` (of some rows, row by row) applied to a column."""

    def nearest(self, samples: Samples, keep: float) -> Tensor:
        """Indices (M,), ascending, of the share of each class nearest to the class's mean."""

    def take(self, samples: Samples, indices: Tensor) -> Samples:
        """The samples at ``indices``, ascending."""

    def teach(self, samples: Samples | Batch, teachers: Iterable[nn.Module]) -> Samples:
        """Adds ``teacher_logits`` (N, classes), the mean of the teachers': asked once for all.

        Of samples, or of tensors that are here.
        """

    def fetch(self, samples: Samples, column: str) -> Tensor:
        """A column, brought together here."""

    def fit(
        self, model: nn.Module, data: Samples | Batch, *, loss: Loss, config: Any, stage: str
    ) -> FitResult:
        """Trains ``model`` in place on samples, or on tensors of one length that are here."""

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Accuracy on the test split, which no method ever sees."""


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
