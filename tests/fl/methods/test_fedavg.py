"""Two rounds of FedAvg and FedProx against a plain loop over clients."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fl.errors import ClientFailed
from fl.fusion.aggregation import average_states
from fl.methods.prototypes import ParticipationConfig, participants
from fl.methods.registry import get_method
from tests.fl.methods.averaged import (
    CLIENTS,
    WITHOUT_NORM,
    averaged,
    close,
    federation,
    member,
    play,
    samples,
    settings,
    start,
    train,
)
from tests.fl.toy import same_bits

EVERYONE = list(range(CLIENTS))


def alike(name: str = "fedavg", **changes: Any) -> Any:
    return settings(name, WITHOUT_NORM, **changes)


def naive(who: list[list[int]], mu: float = 0.0) -> dict[str, Tensor]:
    """FedAvg and FedProx as their papers' boxes have them: a loop over rounds and clients."""
    model = start(WITHOUT_NORM)
    for number, chosen in enumerate(who, start=1):
        sent = deepcopy(model.state_dict())

        def near(net: nn.Module, *_: Tensor) -> Tensor:
            apart = [(w - sent[n]).square().sum() for n, w in net.named_parameters()]  # noqa: B023
            return mu / 2 * torch.stack(apart).sum()

        states = [train(deepcopy(model), k, number, near).state_dict() for k in chosen]
        sizes = [len(samples(k)[1]) for k in chosen]
        model.load_state_dict(averaged(states, [size / sum(sizes) for size in sizes]))
    return model.state_dict()


def test_two_rounds_are_those_of_the_plain_loop() -> None:
    outcome, _ = play("fedavg", alike())
    twin = start(WITHOUT_NORM)
    twin.load_state_dict(naive([EVERYONE] * 2))
    assert close(outcome, twin.state_dict())
    assert not close(outcome, naive([EVERYONE]))
    _, server = federation("fedavg", alike())
    assert outcome.epochs[-1].accuracy == server.evaluate(twin.eval()).accuracy


def test_fedprox_is_the_plain_loop_with_a_term_more() -> None:
    held, _ = play("fedprox", alike("fedprox", proximal=0.5))
    assert close(held, naive([EVERYONE] * 2, mu=0.5))
    assert not close(held, naive([EVERYONE] * 2))
    assert get_method("fedprox").config().classifier.proximal > 0


def test_who_takes_part_is_drawn_anew_in_every_round() -> None:
    half = alike(participation=0.5)
    clients, _ = federation("fedavg", half)
    who = [participants(clients, half, number) for number in (1, 2, 3)]
    assert all(len(chosen) == 2 for chosen in who)
    assert len({tuple(chosen) for chosen in who}) > 1
    assert close(play("fedavg", half, 3)[0], naive(who))
    assert participants(clients, ParticipationConfig(participation=0.01), 1)
    clients.dropped[who[0][0]] = "failed for good"
    assert participants(clients, ParticipationConfig(participation=1.0), 1) == [
        k for k in EVERYONE if k != who[0][0]
    ]


def test_where_newcomers_alone_are_left_nobody_takes_part() -> None:
    clients, _ = federation("fedavg", alike())
    clients.dropped.update(dict.fromkeys(EVERYONE[:-1], "out of power"))
    with pytest.raises(ClientFailed, match="out of power; no client that takes part is left"):
        participants(clients, ParticipationConfig(newcomers=1), 2)


def test_one_round_is_unweighted_unless_it_is_told_otherwise() -> None:
    clients, _ = federation("fedavg", alike())
    states = [u.tensors for u in clients.train()]
    sizes = [c.num_samples for c in clients.members]
    assert len(set(sizes)) > 1

    def one(**changes: Any) -> dict[str, Tensor]:
        average = member(play("fedavg", alike(**changes), 1)[0])
        return {f"classifier.{n}": t for n, t in average.state_dict().items()}

    assert same_bits(one(), average_states(states))
    assert same_bits(one(weighting="samples"), average_states(states, sizes))
    assert not same_bits(one(), average_states(states, sizes))
