"""Clients, how they train, what they are sent and what they upload: records and protocols.

How and where a client's job runs is the executor's business: in this process (:mod:`fl.executor`)
or on Ray (:mod:`cluster.clients.executor`).
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fl.data.shard import Shard
from fl.errors import ClientFailed
from fl.events import Events
from fl.json_values import JsonObject
from fl.seeding import in_round, torch_generator
from fl.wire import Tensors

Batch = dict[str, Tensor]
"""Columns of one length, by name."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
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


class Training(Protocol):
    """How a client trains: a frozen dataclass of JSON values, with the task that runs it.

    Who writes a new one writes one file: the record and its task. What is shared by trainings that
    go over the client's samples in epochs is in :class:`fl.training.epochs.EpochTraining`.
    """

    __dataclass_fields__: ClassVar[JsonObject]

    @property
    def model(self) -> str:
        """Name of the model, by which resources are set and times are told."""
        ...

    @property
    def task(self) -> "Task":
        """What a client with this record runs: a function of a module, which other processes
        find by its name."""
        ...

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` if the model cannot take such images."""
        ...

    def work(self, num_samples: int) -> int:
        """Samples passed through the model: what a client's time is reckoned by."""
        ...

    def probe(self, steps: int, num_classes: int) -> "tuple[Training, int]":
        """The same training in so many steps, and the number of samples that make them."""
        ...

    def speed_settings(self) -> Mapping[str, object]:
        """The settings that memory and time per sample depend on."""
        ...

    def upload_bytes(self, run_spec: RunSpec) -> int:
        """About how many bytes a client uploads."""
        ...


@dataclass(frozen=True, kw_only=True)
class Client:
    """One client as the server knows it."""

    id: int
    role: str
    training: Training
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
    run_spec: RunSpec
    shard: Shard
    device: torch.device
    broadcast: Tensors
    payload: Tensors
    round: int = 1

    def stream(self, purpose: str) -> torch.Generator:
        """The client's own random numbers for a purpose, others in every round."""
        named = in_round(purpose, self.round)
        return torch_generator(self.run_spec.seed, named, self.client.id)


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
    run_spec: RunSpec
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

    def locked(self, keys: Mapping[int, str]) -> AbstractContextManager[list[int]]:
        """Some of these clients, at least one, whom nobody else is training meanwhile."""
        ...

    def end_round(self, number: int) -> None:
        """What was uploaded up to this round is not needed any more to go on."""
        ...
