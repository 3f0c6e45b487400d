"""What the tests of personalised methods share: a federation of four, whole runs, plain loops."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fl.clients import Clients
from fl.data.partition import Partition, PartitionConfig, make_partition
from fl.exchange import unpack
from fl.federation import RunSpec, Task
from fl.methods.registry import get_method
from fl.server import Outcome
from fl.training.classifier import starting_classifier
from tests.fl.methods.plain_runs import BATCH, EPOCHS, LR, Runs, averaged
from tests.fl.methods.tiny import tiny_data
from tests.fl.toy import same_bits

CLIENTS = 4
DATA = tiny_data(train=99, test=20)
SPEC = RunSpec.of_images(DATA.image_shape, num_classes=10, seed=0)
LOCAL: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "optimizer": "sgd", "lr": LR}
__all__ = ["averaged", "batches", "federation", "samples", "sizes", "store", "train"]


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


RUNS = Runs(DATA, CLIENTS, partition(), shared=True)
federation, store, sizes = RUNS.federation, RUNS.store, RUNS.sizes
samples, batches, train = RUNS.samples, RUNS.batches, RUNS.train


def play(name: str, config: Any, rounds: int = 3, **options: Any) -> tuple[Outcome, Clients]:
    """A whole run, and its clients."""
    return RUNS.play(name, config, rounds, **options)


@cache
def fedavg(rounds: int = 3, **changes: Any) -> tuple[Outcome, Clients]:
    """FedAvg's run, once for all tests that compare with it."""
    return play("fedavg", settings("fedavg", **changes), rounds)


@cache
def alone() -> tuple[Outcome, Clients]:
    """Three rounds of training alone, once for all tests that compare with them."""
    return play("local", settings("local"))


def losing(clients: Clients, task: Task, lost: int) -> None:
    """Has a client fail for good in the map of that task, where failures are dropped."""
    real = clients.map

    def mapped(own: object, **options: object) -> object:
        updates = real(own, **options)  # type: ignore[arg-type]
        if own is not task:
            return updates
        clients.dropped[lost] = "its node is gone"
        return [u for u in updates if u.client.id != lost]

    clients.map = mapped  # type: ignore[method-assign, assignment]


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


def remembered(clients: Clients, models: Sequence[nn.Module], atol: float = 2e-5) -> bool:
    """Whether each client remembers its model, but for rounding."""
    pairs = zip(memories(clients), models, strict=True)
    return all(close(plain(memory), model.state_dict(), atol) for memory, model in pairs)


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


def close(one: dict[str, Tensor], other: dict[str, Tensor], atol: float = 2e-5) -> bool:
    """Whether weights agree but for rounding."""
    return all(torch.allclose(one[n], other[n], atol=atol) for n in one)
