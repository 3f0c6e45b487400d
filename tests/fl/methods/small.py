"""Any method's settings, made so small that a run takes no time, and whole runs."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cluster.clients.store import Store
from fl.clients import Clients
from fl.data.datasets import Dataset
from fl.data.partition import Partition, PartitionConfig, make_partition
from fl.events import Event
from fl.fusion.checkpoints import Checkpoints
from fl.methods.registry import METHODS
from fl.rounds import Rounds
from fl.server import Outcome
from tests.fl.methods.tiny import tiny_data, tiny_federation

SMALL = {
    "epochs": 2,
    "own_epochs": 3,
    "steps": 2,
    "batch_size": 16,
    "width": 0.05,
    "small_width": 0.3,
    "large_width": 0.02,
    "global_width": 0.05,
    "latent": 4,
    "num_samples": 24,
    "open_samples": 24,
    "images_per_class": 1,
}
"""Settings by name, wherever among a method's they are."""
CLIENTS = 4


def small(config: Any, **others: Any) -> Any:
    """The settings, with those that cost time made small, in the records within them too."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    nested = {name: small(value, **others) for name, value in values.items() if is_dataclass(value)}
    known = SMALL | others
    return replace(config, **nested, **{name: known[name] for name in known.keys() & values})


def light(name: str, config: Any) -> Any:
    """The method's settings with a CNN, which trains quicker than VGG-9; FedMHO's servers drop
    units of theirs."""
    own = getattr(config, "classifier", None)
    if own is not None and own.model == "vgg9" and not name.startswith("fedmho"):
        config = replace(config, classifier=replace(own, model="cnn"))
    if name == "fedaf":
        config = replace(config, condensation=replace(config.condensation, model="cnn"))
    return config


class Problem(NamedTuple):
    """Who has which samples, some of them for tests, and public images that nobody has."""

    data: Dataset
    cut: Partition
    public: Tensor


@cache
def problem(train: int, test: int, test_fraction: float) -> Problem:
    """Of so many training samples, which the clients share, and so many test samples."""
    data = tiny_data(train, test)
    how = PartitionConfig(test_fraction=test_fraction)
    cut = make_partition(data.train.labels, CLIENTS, 10, how, alpha=1.0, seed=0)
    public = torch.from_numpy(tiny_data(train + 40).train.images[train:]).float() / 255
    return Problem(data, cut, public)


def rounds_of(name: str) -> int:
    """Rounds of a run, if it has any: DynaFed needs three before it learns images."""
    return 4 if name == "dynafed" else 3


class Run(NamedTuple):
    """A whole run."""

    outcome: Outcome
    clients: Clients
    heard: list[Event]


def play(
    name: str,
    config: Any,
    given: Problem,
    folder: Path,
    *,
    about: str = "run",
    seed: int = 0,
    dropped: dict[int, str] | None = None,
    listener: Callable[[Clients, Event], object] = lambda clients, event: None,
) -> Run:
    """A run that saves its states in a folder, and goes on from them."""
    method, heard = METHODS[name], list[Event]()

    def hear(event: Event) -> None:
        heard.append(event)
        listener(clients, event)

    clients, server = tiny_federation(
        config,
        num_clients=CLIENTS,
        seed=seed,
        assign=method.assign,
        data=given.data,
        cut=given.cut,
        shared=True,
        store=Store(folder / "pool", folder / about, given.data.train),
        listener=hear,
        checkpoints=Checkpoints(folder, every=0),
        on_failure="drop" if dropped else "stop",
    )
    clients.dropped.update(dropped or {})
    inputs: dict[str, Any] = {}
    if not method.one_shot:
        inputs["rounds"] = Rounds(rounds_of(name), folder, about)
    if method.auxiliary:
        inputs["auxiliary"] = given.public
    return Run(method.run(clients, server, config, **inputs), clients, heard)
