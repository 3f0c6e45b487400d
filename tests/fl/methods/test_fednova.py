"""FedNova against a plain loop, and where it is FedAvg."""

from copy import deepcopy
from typing import Any

import pytest
from torch import Tensor

from fl.errors import UserError
from fl.federation import Client, Request, Training, Update
from fl.methods.fednova import steps
from tests.fl.methods.averaged import (
    CLIENTS,
    WITHOUT_NORM,
    batches,
    close,
    play,
    settings,
    start,
    train,
    weights,
)


def in_effect(k: int) -> float:
    """a_k: how often a gradient of the client's first steps counts in its move."""
    velocity = a = 0.0
    for _ in batches(k, 1):
        velocity = 0.9 * velocity + 1
        a += velocity
    return a


def naive(rounds: int) -> dict[str, Tensor]:
    x, p, a = start(WITHOUT_NORM), weights(), [in_effect(k) for k in range(CLIENTS)]
    for number in range(1, rounds + 1):
        before, state = deepcopy(x.state_dict()), x.state_dict()
        clients = [train(deepcopy(x), k, number).state_dict() for k in range(CLIENTS)]
        tau = sum(p[k] * a[k] for k in range(CLIENTS))
        for n in before:
            moves = [p[k] * (clients[k][n] - before[n]) / a[k] for k in range(CLIENTS)]
            state[n] = before[n] + tau * sum(moves)
        x.load_state_dict(state)
    return x.state_dict()


def test_three_rounds_are_those_of_a_plain_loop() -> None:
    assert len({len(list(batches(k, 1))) for k in range(CLIENTS)}) > 1
    outcome, _ = play("fednova", settings("fednova", WITHOUT_NORM), 3)
    assert close(outcome, naive(3))
    fedavg, _ = play("fedavg", settings("fedavg", WITHOUT_NORM), 3)
    (own,) = fedavg.model.members  # type: ignore[union-attr]
    assert not close(outcome, own.state_dict(), atol=1e-4)


def counted(training: Training, **own: Any) -> float:
    """The steps of a client of 80 samples."""
    asked = Request(cpus=1, gpus=0)
    member = Client(id=0, role="r", training=training, num_samples=80, request=asked, **own)
    return steps(Update(client=member, tensors={}, stats={}, seconds=1.0, reused=False))


def test_a_proximal_step_counts_less_the_later_ones_follow() -> None:
    """a = sum_s (1 - lr mu)^s: what is left of each gradient after the steps behind it."""
    training = settings("fednova", WITHOUT_NORM, momentum=0.0, proximal=0.5).classifier
    left = 1 - training.lr * 0.5
    assert counted(training) == pytest.approx(sum(left**s for s in range(training.steps(80))))


def test_a_rate_of_a_clients_own_counts_as_so_many_steps() -> None:
    training = settings("fednova", WITHOUT_NORM).classifier
    thrice = counted(training, changes=(("lr", 3 * training.lr),))
    assert thrice == pytest.approx(3 * counted(training))


@pytest.mark.parametrize(
    "local", [{"optimizer": "adam"}, {"patience": 2}, {"momentum": 0.9, "proximal": 0.1}]
)
def test_training_whose_steps_cannot_be_counted_is_refused(local: dict[str, object]) -> None:
    with pytest.raises(UserError, match="fednova"):
        settings("fednova", WITHOUT_NORM, **local)
