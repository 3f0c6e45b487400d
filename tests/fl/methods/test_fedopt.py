"""FedAdagrad, FedAdam and FedYogi against a plain loop."""

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


def naive(rounds: int, name: str) -> dict[str, Tensor]:
    beta1 = 0.0 if name == "fedadagrad" else 0.9
    x, tau = start(WITHOUT_NORM), 0.01
    m = {n: torch.zeros_like(p) for n, p in x.named_parameters()}
    v = {n: torch.full_like(p, tau**2) for n, p in x.named_parameters()}
    for number in range(1, rounds + 1):
        clients = [train(deepcopy(x), k, number).state_dict() for k in range(CLIENTS)]
        mean = averaged(clients, weights())
        state = x.state_dict()
        for n in m:
            d = (mean[n] - state[n]).float()
            m[n] = beta1 * m[n] + (1 - beta1) * d
            v[n] = {
                "fedadagrad": v[n] + d**2,
                "fedadam": 0.99 * v[n] + 0.01 * d**2,
                "fedyogi": v[n] - 0.01 * d**2 * (v[n] - d**2).sign(),
            }[name]
            state[n] = state[n] + 0.1 * m[n] / (v[n].sqrt() + tau)
        x.load_state_dict(state)
    return x.state_dict()


NAMES = ["fedadagrad", "fedadam", "fedyogi"]


@pytest.mark.parametrize("name", NAMES)
def test_three_rounds_are_those_of_a_plain_loop(name: str) -> None:
    own = settings(name, WITHOUT_NORM, server_lr=0.1, adaptivity=0.01)
    outcome, _ = play(name, own, 3)
    assert close(outcome, naive(3, name))
    for other in {*NAMES} - {name}:
        assert not close(outcome, naive(3, other), atol=1e-5)
