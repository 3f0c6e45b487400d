"""Ditto: FedAvg to the last bit for the average, and a plain loop for each client's own model."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from tests.fl.methods.personal_runs import (
    CLIENTS,
    averaged,
    memories,
    model_of,
    play,
    remembered,
    same,
    settings,
    start,
    train,
)
from tests.fl.toy import same_bits

ATTACHMENT = 2.0


def naive(rounds: int) -> list[nn.Module]:
    """Each client's own model after so many rounds."""
    w = start(settings("ditto"))
    own = [deepcopy(w) for _ in range(CLIENTS)]
    for number in range(1, rounds + 1):
        sent = deepcopy(w.state_dict())
        for v in own:

            def near(v: nn.Module, *_: Tensor) -> Tensor:
                squares = [(p - sent[n]).square().sum() for n, p in v.named_parameters()]  # noqa: B023
                return ATTACHMENT / 2 * torch.stack(squares).sum()

            train(v, own.index(v), number, near)
        states = [train(deepcopy(w), k, number).state_dict() for k in range(CLIENTS)]
        w.load_state_dict(averaged(states, [1] * CLIENTS))
    return own


def test_own_models_are_those_of_a_plain_loop_and_the_average_is_fedavgs() -> None:
    outcome, clients = play("ditto", settings("ditto", attachment=ATTACHMENT))
    assert remembered(clients, naive(3))
    fedavg, theirs = play("fedavg", settings("fedavg", weighting="uniform"))
    assert same_bits(model_of(outcome), model_of(fedavg))
    assert clients.bytes_up == theirs.bytes_up
    assert clients.bytes_down == theirs.bytes_down


def test_without_the_attachment_clients_train_alone() -> None:
    _, clients = play("ditto", settings("ditto", attachment=0.0))
    _, alone = play("local", settings("local"))
    assert same(memories(clients), memories(alone))
