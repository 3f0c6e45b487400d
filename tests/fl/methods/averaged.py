"""What the tests of FedAvg's relatives share: a federation of four, and its whole runs."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fl.clients import Clients
from fl.events import ClientEnd, Event
from fl.methods.registry import get_method
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig, starting_classifier
from tests.fl.methods.plain_runs import EPOCHS, LR, Runs, averaged
from tests.fl.methods.tiny import tiny_data
from tests.fl.toy import same_bits

SMALL: dict[str, Any] = {"model": "convnet", "width": 0.04, "epochs": EPOCHS, "lr": LR}
"""A classifier with BatchNorm."""
WITHOUT_NORM: dict[str, Any] = {**SMALL, "model": "cnn", "width": 0.3}
"""One without, where rounding stays small, and time too."""
CLIENTS = 4
RUNS = Runs(tiny_data(train=160, test=60), CLIENTS)
federation, store = RUNS.federation, RUNS.store
samples, batches, train = RUNS.samples, RUNS.batches, RUNS.train
__all__ = ["averaged", "batches", "federation", "samples", "store", "train"]


def settings(name: str, local: dict[str, Any] = WITHOUT_NORM, **changes: Any) -> Any:
    """The method's settings, all clients with this classifier."""
    kind = get_method(name).config
    own = {n: changes.pop(n) for n in list(changes) if n not in kind.__dataclass_fields__}
    classifier = type(kind().classifier)(**{**local, **own})
    return kind(num_large=CLIENTS, classifier=classifier, **changes)


def play(name: str, config: Any, rounds: int = 2, **options: Any) -> tuple[Outcome, Clients]:
    """A whole run, and its clients."""
    return RUNS.play(name, config, rounds, **options)


@cache
def fedavg(rounds: int, **changes: Any) -> Outcome:
    """FedAvg's run, once for all tests that compare with it."""
    return play("fedavg", settings("fedavg", **changes), rounds)[0]


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


def weights() -> list[float]:
    """Each client's share of the samples."""
    sizes = RUNS.sizes()
    return [size / sum(sizes) for size in sizes]
