"""What the tests of FedAvg's relatives share: a federation of four, whole runs, plain loops."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from cluster.clients.store import Store
from fl.clients import Clients
from fl.events import ClientEnd, Event, Listener
from fl.federation import UpdateStore
from fl.methods.registry import get_method
from fl.rounds import Rounds
from fl.seeding import seed_for
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig, starting_classifier
from tests.fl.methods.tiny import WatchedServer, tiny_data, tiny_federation, tiny_partition
from tests.fl.toy import same_bits

SMALL: dict[str, Any] = {"model": "convnet", "width": 0.04, "epochs": 2, "lr": 0.05}
"""A classifier with BatchNorm."""
WITHOUT_NORM: dict[str, Any] = {**SMALL, "model": "cnn", "width": 0.3}
"""One without, where rounding stays small, and time too."""
CLIENTS = 4
DATA = tiny_data(train=160, test=60)
Step = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


def settings(name: str, local: dict[str, Any] = WITHOUT_NORM, **changes: Any) -> Any:
    """The method's settings, all clients with this classifier."""
    kind = get_method(name).config
    own = {n: changes.pop(n) for n in list(changes) if n not in kind.__dataclass_fields__}
    classifier = type(kind().classifier)(**{**local, **own})
    return kind(num_large=CLIENTS, classifier=classifier, **changes)


def federation(
    name: str, config: Any, *, store: UpdateStore | None = None, listener: Listener = lambda _: None
) -> tuple[Clients, WatchedServer]:
    return tiny_federation(
        config,
        num_clients=CLIENTS,
        assign=get_method(name).assign,
        data=DATA,
        store=store,
        listener=listener,
    )


def play(name: str, config: Any, rounds: int = 2, **options: Any) -> tuple[Outcome, Clients]:
    """A whole run, and its clients."""
    clients, server = federation(name, config, **options)
    run = get_method(name).run
    return run(clients, server, config, rounds=Rounds(rounds)), clients


@cache
def fedavg(rounds: int, **changes: Any) -> Outcome:
    """FedAvg's run, once for all tests that compare with it."""
    return play("fedavg", settings("fedavg", **changes), rounds)[0]


def store(root: Path, run: str = "run") -> Store:
    return Store(root / ".store", root / run / "updates", DATA.train)


def reused(updates: list[Event]) -> list[bool]:
    return [event.reused for event in updates if isinstance(event, ClientEnd)]


def same_model(one: Outcome, other: Outcome) -> bool:
    return same_bits(one.model.state_dict(), other.model.state_dict())


def member(outcome: Outcome) -> nn.Module:
    """The one prototype's model."""
    (found,) = outcome.model.members  # type: ignore[union-attr]
    assert isinstance(found, nn.Module)
    return found


def close(outcome: Outcome, state: dict[str, Tensor], atol: float = 2e-5) -> bool:
    """Whether the model is that state, but for BatchNorm's counters, whose mean is rounded."""
    own = {n: t for n, t in member(outcome).state_dict().items() if t.is_floating_point()}
    return all(torch.allclose(t.double(), state[n].double(), atol=atol) for n, t in own.items())


def start(local: dict[str, Any] = WITHOUT_NORM) -> nn.Module:
    clients, _ = federation("fedavg", settings("fedavg", local))
    return starting_classifier(ClassifierConfig(**local), clients.run_spec)


def samples(k: int) -> tuple[Tensor, Tensor]:
    """Images and labels of a client."""
    own = tiny_partition(DATA, CLIENTS).train[k]
    images = torch.from_numpy(DATA.train.images[own]).float() / 255
    return images, torch.from_numpy(DATA.train.labels[own])


def weights() -> list[float]:
    """Each client's share of the samples."""
    sizes = [len(samples(k)[1]) for k in range(CLIENTS)]
    return [size / sum(sizes) for size in sizes]


def batches(k: int, number: int) -> Iterator[Tensor]:
    """Rows of a client's samples, batch by batch, in a round."""
    purpose = "local/order" if number == 1 else f"local/order/round {number}"
    order = torch.Generator().manual_seed(seed_for(0, purpose, k))
    for _ in range(SMALL["epochs"]):
        yield from torch.randperm(len(samples(k)[1]), generator=order).split(16)


def train(model: nn.Module, k: int, number: int, further: Step | None = None) -> nn.Module:
    """Plain local training by SGD, with a further term of model, features, images and labels."""
    images, labels = samples(k)
    sgd = optim.SGD(model.parameters(), lr=SMALL["lr"], momentum=0.9)
    model.train()
    for rows in batches(k, number):
        z = model.features(images[rows]).flatten(1)
        loss = F.cross_entropy(model.classifier(z), labels[rows])
        if further is not None:
            loss = loss + further(model, z, images[rows], labels[rows])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return model


def averaged(states: list[dict[str, Tensor]], shares: list[float]) -> dict[str, Tensor]:
    return {
        name: sum(share * state[name].double() for share, state in zip(shares, states, strict=True))
        for name in states[0]
    }  # type: ignore[return-value]
