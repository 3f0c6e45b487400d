"""What the tests of personalised methods share: a federation of five, whole runs, plain loops."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from cluster.clients.store import Store
from fl.clients import Clients
from fl.data.partition import Partition, PartitionConfig, make_partition
from fl.events import Listener
from fl.exchange import unpack
from fl.federation import Executor, RunSpec, UpdateStore
from fl.methods.registry import get_method
from fl.rounds import Rounds
from fl.seeding import seed_for
from fl.server import Outcome
from fl.training.classifier import starting_classifier
from tests.fl.methods.tiny import WatchedServer, tiny_data, tiny_federation
from tests.fl.toy import same_bits

CLIENTS, BATCH = 5, 16
DATA = tiny_data(train=200, test=20)
SPEC = RunSpec.of_images(DATA.image_shape, num_classes=10, seed=0)
LOCAL: dict[str, Any] = {"epochs": 2, "batch_size": BATCH, "optimizer": "sgd", "lr": 0.05}
"""SGD, where rounding stays small: Adam divides by the gradient's size."""


def settings(name: str, **changes: Any) -> Any:
    """The method's settings, with a small model and few epochs."""
    kind = get_method(name).config
    own = {n: changes.pop(n) for n in list(changes) if n not in kind.__dataclass_fields__}
    if name in ("fedavg", "fedprox", "fedseq", "hfldd", "centralised"):
        own = {"model": "m1", "width": 1.0, "momentum": 0.9, **own}
    if name in ("fedavg", "fedprox"):
        changes = {"num_large": CLIENTS, "tested": "clients", "weighting": "samples", **changes}
    if name.startswith("fedrep"):
        own = {"head_epochs": 1, **own}
    return kind(classifier=type(kind().classifier)(**{**LOCAL, **own}), **changes)


def partition(test_fraction: float = 0.25) -> Partition:
    config = PartitionConfig(kind="iid", test_fraction=test_fraction)
    return make_partition(DATA.train.labels, CLIENTS, 10, config, alpha=0.5, seed=0)


def federation(
    name: str,
    config: Any,
    *,
    store: UpdateStore | None = None,
    executor: Executor | None = None,
    listener: Listener = lambda event: None,
    cut: Partition | None = None,
) -> tuple[Clients, WatchedServer]:
    return tiny_federation(
        config,
        num_clients=CLIENTS,
        assign=get_method(name).assign,
        data=DATA,
        cut=cut or partition(),
        shared=True,
        store=store,
        executor=executor,
        listener=listener,
    )


def play(
    name: str,
    config: Any,
    rounds: int = 3,
    *,
    directory: Path | None = None,
    inputs: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Outcome, Clients]:
    """A whole run, and its clients."""
    clients, server = federation(name, config, **options)
    run = get_method(name).run
    played = Rounds(rounds, directory)
    return run(clients, server, config, rounds=played, **(inputs or {})), clients


@cache
def fedavg(rounds: int = 3, **changes: Any) -> tuple[Outcome, Clients]:
    """FedAvg's run, once for all tests that compare with it."""
    return play("fedavg", settings("fedavg", **changes), rounds)


@cache
def alone() -> tuple[Outcome, Clients]:
    """Three rounds of training alone, once for all tests that compare with them."""
    return play("local", settings("local"))


def store(root: Path, run: str = "run") -> Store:
    return Store(root / ".store", root / run / "updates", DATA.train)


def curve(outcome: Outcome) -> list[tuple[float | None, ...]]:
    """Each client's accuracy, round by round."""
    return [evaluation.per_client for evaluation in outcome.epochs]


def memories(clients: Clients) -> list[dict[str, Tensor]]:
    """What each client remembers at the end of a run; nothing if it never took part."""
    found = (clients._memories.get(k) for k in range(CLIENTS))
    return [unpack(bytes(memory.read()))[0] if memory else {} for memory in found]


def same(one: Sequence[dict[str, Tensor]], other: Sequence[dict[str, Tensor]]) -> bool:
    return all(same_bits(a, b) for a, b in zip(one, other, strict=True))


def plain(memory: dict[str, Tensor]) -> dict[str, Tensor]:
    """The model's own names in place of those in a memory."""
    return {n.removeprefix("classifier."): t for n, t in memory.items()}


def ledgers(clients: Clients) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes up and down."""
    return clients.bytes_up, clients.bytes_down


def model_of(outcome: Outcome) -> dict[str, Tensor]:
    """The global model's weights, whether it is alone or in an ensemble."""
    assert outcome.model is not None
    state = {n.removeprefix("members.0."): t for n, t in outcome.model.state_dict().items()}
    state.pop("weights", None)  # of the ensemble's members
    return state


def start(config: Any) -> nn.Module:
    return starting_classifier(config.classifier, SPEC)


def samples(k: int) -> tuple[Tensor, Tensor]:
    """Images and labels that a client trains on."""
    own = partition().train[k]
    images = torch.from_numpy(DATA.train.images[own]).float() / 255
    return images, torch.from_numpy(DATA.train.labels[own])


def sizes() -> list[int]:
    return [len(samples(k)[1]) for k in range(CLIENTS)]


def batches(k: int, number: int, epochs: int = 2, purpose: str = "local/order") -> Iterator[Tensor]:
    """Rows of a client's samples, batch by batch, in a round."""
    named = purpose if number == 1 else f"{purpose}/round {number}"
    order = torch.Generator().manual_seed(seed_for(0, named, k))
    for _ in range(epochs):
        yield from torch.randperm(sizes()[k], generator=order).split(BATCH)


Further = Callable[[Tensor, Tensor], Tensor]
"""A further term of a batch's logits and rows."""


def train(
    model: nn.Module,
    k: int,
    number: int,
    *,
    further: Further | None = None,
    only: Sequence[nn.Parameter] | None = None,
    epochs: int = 2,
    purpose: str = "local/order",
) -> nn.Module:
    """Plain local training by SGD, perhaps of some parameters only."""
    images, labels = samples(k)
    sgd = optim.SGD(model.parameters() if only is None else only, lr=LOCAL["lr"], momentum=0.9)
    for rows in batches(k, number, epochs, purpose):
        logits = model(images[rows])
        loss = F.cross_entropy(logits, labels[rows])
        if further is not None:
            loss = loss + further(logits, rows)
        model.zero_grad()
        loss.backward()
        sgd.step()
    return model


def averaged(states: Sequence[dict[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    total = sum(shares)
    return {
        n: sum((w / total * s[n].double() for w, s in zip(shares, states, strict=True))).float()  # type: ignore[union-attr]
        for n in states[0]
    }


def close(one: dict[str, Tensor], other: dict[str, Tensor], atol: float = 2e-5) -> bool:
    """Whether weights agree but for rounding."""
    return all(torch.allclose(one[n], other[n], atol=atol) for n in one)
