"""FedDyn against a plain loop, its first round against FedProx, and what stays with a client."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.methods.prototypes import participants
from tests.fl.methods.averaged import (
    CLIENTS,
    WITHOUT_NORM,
    averaged,
    close,
    fedavg,
    federation,
    member,
    play,
    same_model,
    settings,
    start,
    train,
)


def naive(who: list[list[int]], alphas: list[float], there: int = CLIENTS) -> dict[str, Tensor]:
    """Algorithm 1 as the authors' code has it; returns the mean of the last round's weights."""
    model = start(WITHOUT_NORM)
    s = deepcopy(model.state_dict())
    g = [{n: torch.zeros_like(p) for n, p in model.named_parameters()} for _ in range(CLIENTS)]
    mean = s
    for number, chosen in enumerate(who, start=1):
        states = []
        for k in chosen:
            local = start(WITHOUT_NORM)
            local.load_state_dict(s)

            def further(net: nn.Module, *_: Tensor) -> Tensor:
                total = torch.zeros(())
                for n, w in net.named_parameters():
                    linear = (w * g[k][n]).sum()  # noqa: B023
                    total = total + linear + (w - s[n]).square().sum() / 2  # noqa: B023
                return alphas[k] * total  # noqa: B023

            states.append(train(local, k, number, further).state_dict())
            for n, w in local.named_parameters():
                g[k][n] += w.detach() - s[n]
        mean = averaged(states, [1 / len(chosen)] * len(chosen))
        s = {n: t.to(model.state_dict()[n].dtype) for n, t in mean.items()}
        for n, _ in model.named_parameters():
            s[n] = s[n] + sum(own[n] for own in g) / there
    return mean


EVERYONE = list(range(CLIENTS))


def test_three_rounds_are_those_of_the_plain_loop() -> None:
    outcome, _ = play("feddyn", settings("feddyn", WITHOUT_NORM, alpha=0.1), 3)
    assert close(outcome, naive([EVERYONE] * 3, [0.1] * CLIENTS))
    assert not close(outcome, naive([EVERYONE] * 3, [0.01] * CLIENTS), atol=1e-4)


def test_clients_that_were_absent_go_on_with_what_they_remember() -> None:
    half = settings("feddyn", WITHOUT_NORM, alpha=0.2, participation=0.5)
    clients, _ = federation("feddyn", half)
    who = [participants(clients, half, number) for number in (1, 2, 3, 4)]
    assert len({tuple(chosen) for chosen in who}) > 1
    outcome, _ = play("feddyn", half, 4)
    assert close(outcome, naive(who, [0.2] * CLIENTS))


def test_who_takes_part_in_no_round_shares_no_drift() -> None:
    there = CLIENTS - 1
    own = settings("feddyn", WITHOUT_NORM, alpha=0.1, newcomers=1)
    expected = naive([list(range(there))] * 3, [0.1] * CLIENTS, there)
    assert close(play("feddyn", own, 3)[0], expected)


def test_alpha_can_be_adapted_to_the_samples() -> None:
    own = settings("feddyn", WITHOUT_NORM, alpha=0.1, adapted=True)
    sizes = [client.num_samples for client in federation("feddyn", own)[0].members]
    alphas = [0.1 * sum(sizes) / CLIENTS / size for size in sizes]
    assert close(play("feddyn", own, 2)[0], naive([EVERYONE] * 2, alphas))


def test_its_first_round_is_fedproxs() -> None:
    fedprox = settings("fedprox", proximal=0.3, weighting="uniform")
    own = settings("feddyn", alpha=0.3)
    assert same_model(play("feddyn", own, 1)[0], play("fedprox", fedprox, 1)[0])
    # It is not FedAvg from the second round on, however small alpha is.
    small = settings("feddyn", alpha=1e-9)
    one, three = (member(fedavg(n, weighting="uniform")).state_dict() for n in (1, 3))
    assert close(play("feddyn", small, 1)[0], one)
    assert not close(play("feddyn", small, 3)[0], three, atol=1e-3)


def test_what_would_not_be_feddyn_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="alpha must be a positive number, got 0"):
        settings("feddyn", alpha=0.0)
    with pytest.raises(UserError, match=r"proximal must be 0, got 0\.1"):
        settings("feddyn", proximal=0.1)
