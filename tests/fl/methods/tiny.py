"""A federation small enough for every test: six clients on a slice of the digits."""

from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fl.client_map import OnFailure
from fl.clients import Clients
from fl.data.datasets import Dataset, Split, load
from fl.data.partition import Partition, PartitionConfig, make_partition
from fl.data.shard import Shard
from fl.events import Events, Listener
from fl.executor import InProcess
from fl.federation import Batch, Client, Executor, Request, RunSpec, UpdateStore
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.fit import FitConfig
from fl.fusion.server import SingleServer
from fl.methods.fedmho import FedMHOConfig, assign
from fl.methods.method import Assignment
from fl.scoring import OwnTests
from fl.server import FitResult, Lessons, Loss, Samples
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from tests.fl.toy import CPU

TINY = FedMHOConfig(
    num_samples=120,
    classifier=ClassifierConfig(width=0.05, epochs=2),
    generator=GeneratorConfig(width=0.1, latent=4, epochs=3),
    fusion=FitConfig(epochs=3, batch_size=32, lr=1e-3),
    distil_init=FitConfig(epochs=2, batch_size=32, lr=1e-3),
)

Assign = Callable[[Any, int, RunSpec], list[Assignment]]


class NoStore:
    """Keeps nothing, so that every client trains."""

    def keys(self, jobs: Mapping[int, Any]) -> dict[int, str]:
        return dict.fromkeys(jobs, "")

    def get(self, key: str, client: int) -> None:
        return None

    def put(self, key: str, client: int, packed: bytes) -> None:
        pass

    def file(self, key: str) -> None:
        return None

    def locked(self, keys: Mapping[int, str]) -> AbstractContextManager[list[int]]:
        return nullcontext(list(keys))

    def end_round(self, number: int, needed: Set[str] = frozenset()) -> None:
        pass


class WatchedServer(SingleServer):
    """Remembers what each fit was given and what it returned."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.fits: dict[str, tuple[dict[str, torch.Tensor], Batch, FitResult]] = {}

    def fit(
        self,
        model: nn.Module,
        data: Samples | Batch | Lessons,
        *,
        loss: Loss,
        config: FitConfig,
        stage: str,
        tested: bool = True,
    ) -> FitResult:
        before = {n: t.clone() for n, t in model.state_dict().items()}
        result = super().fit(model, data, loss=loss, config=config, stage=stage, tested=tested)
        if isinstance(data, Samples):
            data = {name: self.fetch(data, name) for name in data.columns}
        self.fits[stage] = (before, data if isinstance(data, dict) else {}, result)
        return result


def tiny_data(train: int = 240, test: int = 100) -> Dataset:
    return load("digits", Path(), max_train=train, max_test=test)


def tiny_federation(
    config: Any = TINY,
    *,
    num_clients: int = 6,
    seed: int = 0,
    alpha: float = 0.5,
    assign: Assign = assign,
    data: Dataset | None = None,
    store: UpdateStore | None = None,
    listener: Listener = lambda event: None,
    checkpoints: Checkpoints | None = None,
    device: torch.device = CPU,
    on_failure: OnFailure = "stop",
    cut: Partition | None = None,
    shared: bool = False,
    executor: Executor | None = None,
) -> tuple[Clients, WatchedServer]:
    """``cut``: who has which samples, with test samples of their own; ``shared``: see Request."""
    data = data or tiny_data()
    run_spec = RunSpec.of_images(data.image_shape, num_classes=10, seed=seed)
    own_tests = cut.test if cut else None
    cut = cut or tiny_partition(data, num_clients, alpha=alpha, seed=seed)
    members = [
        Client(
            id=k,
            role=assignment.role,
            training=assignment.training,
            num_samples=len(cut.train[k]),
            request=Request(cpus=1, gpus=0, shared=shared),
        )
        for k, assignment in enumerate(assign(config, num_clients, run_spec))
    ]
    events = Events(listener)
    few = own_tests or [own[:5] for own in cut.train]  # methods that score clients need some
    clients = Clients(
        members,
        cut.train,
        run_spec,
        executor or InProcess(data.train),
        store or NoStore(),
        events,
        on_failure=on_failure,
        tests=OwnTests.of(few, data.train.labels, 10),
    )
    server = WatchedServer(run_spec, whole(data.test), events, device, checkpoints)
    return clients, server


def tiny_partition(
    data: Dataset, num_clients: int, *, alpha: float = 0.5, seed: int = 0
) -> Partition:
    """Which client of :func:`tiny_federation` has which samples."""
    labels = data.train.labels
    return make_partition(labels, num_clients, 10, PartitionConfig(), alpha=alpha, seed=seed)


def whole(split: Split) -> Shard:
    return Shard.from_split(split, np.arange(len(split.labels)), 10)


def changed(config: FedMHOConfig = TINY, **changes: Any) -> FedMHOConfig:
    return replace(config, **changes)
