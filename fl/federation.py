"""Records and protocols of a federation: clients, their trainings, requests, jobs and updates.

An executor decides how and where a client's job runs: in this process (:mod:`fl.executor`) or on
Ray (:mod:`cluster.clients.executor`).
"""

from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from fl.data.shard import Shard
from fl.errors import ClientFailed
from fl.events import Events
from fl.exchange import Tensors, Upload
from fl.inputs import Inputs
from fl.json_files import JsonObject
from fl.seeding import in_round, torch_generator
from fl.targets import Targets

Record = TypeVar("Record")
Batch = dict[str, Tensor]
"""Columns of one length, by name."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What server and clients have before training: inputs, classes, domains, and the seed."""

    inputs: Inputs
    """What the samples are."""
    num_classes: int
    """1 where samples have targets and no classes."""
    seed: int
    """From which all randomness is derived."""
    targets: Targets | None = None
    """What a model is to answer, where that is no class."""
    domains: tuple[str, ...] = ()
    """Names of the domains, if the data set has any: accuracy is then reported for each."""
    tf32: bool = False
    """Whether GPUs round the factors of float32 convolutions and products to TF32."""

    @classmethod
    def of_images(cls, image_shape: tuple[int, int, int], **others: Any) -> Self:
        """That of images (channels, height, width); ``others`` by their names."""
        return cls(inputs=Inputs(image_shape), **others)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width; raises :class:`fl.inputs.NotImages` for other samples."""
        return self.inputs.image_shape

    @property
    def outputs(self) -> int:
        """The last axis of what a model answers: a logit for each class, or as the targets have."""
        return self.num_classes if self.targets is None else self.targets.outputs

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
    """Bytes of main memory; 0 sets no limit and reserves none."""
    shared: bool = False
    """Whether light clients with the same request share a process, one cohort after another."""
    in_waves: bool = False
    """Whether their cohorts are waves of :mod:`fl.training.slots`: a GPU takes one at a time."""

    @property
    def threads(self) -> int:
        """Threads a client computes with: set by its request, so that results are the same."""
        return max(1, int(self.cpus))


class Training(Protocol):
    """How a client trains: a frozen dataclass of JSON values, with the task that runs it.

    A new training is one file: the record, which inherits from this, and its task.
    :class:`fl.training.recipe.EpochTraining` goes over the client's samples in epochs.
    """

    __dataclass_fields__: ClassVar[JsonObject]

    @property
    def model(self) -> str:
        """Name of the model, by which resources are set and rates are learned."""

    @property
    def task(self) -> "Task":
        """The task that a client with this record runs: a function at the top of a module, so that
        other processes find it by its name."""

    @property
    def first_round(self) -> "Training":
        """The record by which such a client trains in the first round, from the common start.

        Methods that then do the same give the same record, and share the uploads in the store.
        """
        return self

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` if the model cannot take such samples."""

    def work(self, num_samples: int) -> int:
        """Samples passed through the model, by which a client's time is estimated."""

    def probe(self, steps: int, num_classes: int) -> "tuple[Training, int]":
        """The same training with so many steps, and the number of samples for them."""

    def speed_settings(self) -> Mapping[str, object]:
        """The settings that memory and time per sample depend on: not how long it trains and at
        which rate."""
        others = "steps", "stop", "lr"
        settings = asdict(self).items()
        return {n: v for n, v in settings if n not in others and not n.endswith("epochs")}

    def upload_bytes(self, run_spec: RunSpec) -> int:
        """About how many bytes a client uploads."""

    def check_sent(self, names: Set[str], round: int) -> None:
        """Raises `UserError` if such clients would not look at tensors of these names, which they
        are to be sent in this round, from 1. Without it they are taken to look at all."""
        return

    def check_upload(self, update: "Update", run_spec: RunSpec) -> None:
        """Raises `ValueError` if a client with this record cannot have uploaded that, beside the
        checks of all uploads."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """One client, as the server describes it."""

    id: int
    """From 0."""
    role: str
    """What kind of client it is for the method, such as ``classifier``."""
    training: Training
    """How it trains."""
    num_samples: int
    """Its training samples."""
    request: Request
    """What it asks of the machine."""
    changes: tuple[tuple[str, object], ...] = ()
    """Settings by which its training differs from the record, which others have too."""

    @property
    def trains_by(self) -> Training:
        """The record with its own settings."""
        return replace(self.training, **dict(self.changes)) if self.changes else self.training

    @property
    def model(self) -> str:
        """Name of the model the client trains."""
        return self.training.model


@dataclass(frozen=True, kw_only=True)
class TaskInput:
    """A task's argument: its client, that client's data, and what the server sent."""

    client: Client
    """The client that runs the task."""
    run_spec: RunSpec
    """What all know before training."""
    shard: Shard
    """The client's training samples."""
    device: torch.device
    """Where to compute."""
    broadcast: Tensors = field(default_factory=dict)
    """What the server sent to all clients, by name."""
    payload: Tensors = field(default_factory=dict)
    """What it sent to this client alone, by name."""
    remembered: Tensors = field(default_factory=dict)
    """What an earlier task of the client's returned, if it was to be remembered."""
    round: int = 1
    """From 1."""
    test: Shard | None = None
    """The client's own test samples, while it is scored; no method's task is given them."""

    def record(self, kind: type[Record]) -> Record:
        """The client's training record, which is of that kind."""
        record = self.client.training
        assert isinstance(record, kind)
        return record

    def stream(self, purpose: str) -> torch.Generator:
        """The client's own random stream for a purpose, another one in every round."""
        named = in_round(purpose, self.round)
        return torch_generator(self.run_spec.seed, named, self.client.id)


@dataclass(frozen=True, kw_only=True)
class TaskOutput:
    """A task's result: the tensors to upload, and a few figures about the training."""

    tensors: Tensors
    stats: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    """The mean training loss of each epoch; of a training in steps, of equal parts of them."""


Task = Callable[[TaskInput], TaskOutput]


@dataclass(frozen=True)
class Memory:
    """What a client remembers: the tensors that one of its tasks returned, packed in the store."""

    key: str
    """The store's key of what that task returned, which determines the tensors."""
    read: Callable[[], Upload]
    """Reads them; raises `UserError` where they are gone or damaged."""
    largest: Mapping[str, float] = field(default_factory=dict)
    """The largest magnitude in each of them, by name."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One task for one client in one round: plain data, which can be sent to other processes."""

    task: Task
    client: Client
    run_spec: RunSpec
    indices: np.ndarray
    broadcast: bytes | None = None
    payload: bytes | None = None
    memory: Memory | None = None
    """What the client remembers, where it lies; only this process can read it."""
    remembered: bytes | None = None
    """The same, packed, once it has been read."""
    round: int = 1
    of_this_run: bool = False
    """Whether no other run could use its upload, whatever the round: its client works on what other
    clients sent it, or remembers something new in place of what it remembers."""
    test: np.ndarray | None = None
    """Indices of the client's own test samples, if the job is to score it."""

    def ready(self) -> "Job":
        """The job with what its client remembers, ready to run.

        Called when the client starts: not all clients' memories may fit into main memory.
        """
        if self.memory is None:
            return self
        return replace(self, memory=None, remembered=bytes(self.memory.read()))


@dataclass(frozen=True, kw_only=True)
class Update:
    """What the server received from one client."""

    client: Client
    """The client that sent it."""
    tensors: Mapping[str, Tensor]
    """What the client uploaded, without what is private; where it is stored in a file, it is read
    when it is used."""
    stats: dict[str, float]
    """Figures that its task reports."""
    seconds: float
    """Its time at work."""
    reused: bool
    """Whether it was taken from the store."""
    private: bool = False
    """While it is checked: whether it stays with the client altogether, so that nobody loads it."""
    largest: Mapping[str, float] = field(default_factory=dict)
    """While it is checked: the largest magnitude in each tensor, by name."""
    began: Mapping[str, float] = field(default_factory=dict)
    """While it is checked: the same of what its client was sent, or remembered."""

    @property
    def sender(self) -> str:
        """What its client is called in errors."""
        return f"client {self.client.id}"


class Executor(Protocol):
    """Runs jobs and yields each with its result as it ends, in any order."""

    def run(
        self, jobs: Sequence[Job], events: Events
    ) -> Generator[tuple[Job, Upload | ClientFailed], None, None]:
        """Yields uploads packed as by :func:`fl.executor.run_jobs`, or a client's failure.

        An upload may be read for as long as it is held. Emits ``client_start`` as jobs start.
        After a failure the other jobs go on, unless the caller closes the generator, which ends
        them.
        """


class UpdateStore(Protocol):
    """Stores packed updates, each under a key made of all that determined it."""

    def keys(self, jobs: Mapping[int, Job]) -> dict[int, str]:
        """The content keys of the uploads of one map's jobs, by client."""

    def get(self, key: str, client: int) -> Upload | None:
        """The packed update of that key, or None."""

    def put(self, key: str, client: int, upload: Upload) -> None:
        """Stores a packed update."""

    def file(self, key: str) -> Path | None:
        """The file of a stored update, or None where the update must be held in memory."""

    def locked(self, keys: Mapping[int, str]) -> AbstractContextManager[list[int]]:
        """Some of these clients, at least one, that no other process trains meanwhile."""

    def end_round(self, number: int, needed: Set[str] = frozenset()) -> None:
        """Releases what was uploaded up to this round, but for the keys that are ``needed``."""
