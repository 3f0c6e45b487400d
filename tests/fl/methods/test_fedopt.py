"""FedAdam and FedYogi against a plain loop."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from tests.fl.methods.averaged import (
    CLIENTS,
    WITHOUT_NORM,
    averaged,
    close,
    play,
    settings,
    start,
    train,
    weights,
)


def naive(rounds: int, *, yogi: bool) -> dict[str, Tensor]:
    x, tau = start(WITHOUT_NORM), 0.01
    m = {n: torch.zeros_like(p) for n, p in x.named_parameters()}
    v = {n: torch.full_like(p, tau**2) for n, p in x.named_parameters()}
    for number in range(1, rounds + 1):
        clients = [train(deepcopy(x), k, number).state_dict() for k in range(CLIENTS)]
        mean = averaged(clients, weights())
        state = x.state_dict()
        for n in m:
            d = (mean[n] - state[n]).float()
            m[n] = 0.9 * m[n] + 0.1 * d
            v[n] = v[n] - 0.01 * d**2 * (v[n] - d**2).sign() if yogi else 0.99 * v[n] + 0.01 * d**2
            state[n] = state[n] + 0.1 * m[n] / (v[n].sqrt() + tau)
        x.load_state_dict(state)
    return x.state_dict()


@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_three_rounds_are_those_of_a_plain_loop(name: str) -> None:
    own = settings(name, WITHOUT_NORM, server_lr=0.1, adaptivity=0.01)
    outcome, _ = play(name, own, 3)
    assert close(outcome, naive(3, yogi=name == "fedyogi"))
    assert not close(outcome, naive(3, yogi=name != "fedyogi"), atol=1e-5)
