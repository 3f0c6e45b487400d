"""MOON against a plain loop, and where it is FedAvg to the last bit."""

from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from fl.events import Event
from tests.fl.methods.averaged import (
    CLIENTS,
    WITHOUT_NORM,
    averaged,
    close,
    fedavg,
    play,
    reused,
    same_model,
    samples,
    settings,
    start,
    store,
    train,
    weights,
)


def naive(rounds: int, mu: float, tau: float) -> dict[str, Tensor]:
    """Algorithm 1 as its box has it, with -log(e^a / (e^a + e^b)) written out."""
    model = start(WITHOUT_NORM)
    last: dict[int, nn.Module] = {}
    for number in range(1, rounds + 1):
        states = []
        for k in range(CLIENTS):
            sent, previous, images = deepcopy(model).eval(), last.get(k), samples(k)[0]

            def further(net: nn.Module, _: Tensor, rows: Tensor) -> Tensor:
                if previous is None:  # noqa: B023
                    return torch.zeros(())
                z = net.features(images[rows]).flatten(1)  # noqa: B023
                with torch.no_grad():
                    towards = sent.features(images[rows]).flatten(1)  # noqa: B023
                    away = previous.features(images[rows]).flatten(1)  # noqa: B023
                a = (z * towards).sum(1) / (z.norm(dim=1) * towards.norm(dim=1))
                b = (z * away).sum(1) / (z.norm(dim=1) * away.norm(dim=1))
                return mu * -((a / tau).exp() / ((a / tau).exp() + (b / tau).exp())).log().mean()

            last[k] = train(deepcopy(model), k, number, further).eval()
            states.append(last[k].state_dict())
        model.load_state_dict(averaged(states, weights()))
    return model.state_dict()


def test_three_rounds_are_those_of_the_plain_loop() -> None:
    outcome, _ = play("moon", settings("moon", WITHOUT_NORM, mu=2.0), 3)
    assert close(outcome, naive(3, mu=2.0, tau=0.5))
    assert not close(outcome, naive(3, mu=0.0, tau=0.5), atol=1e-4)


def test_without_the_term_and_in_its_first_round_it_is_fedavg() -> None:
    one, two = (fedavg(n, weighting="samples") for n in (1, 2))
    assert same_model(play("moon", settings("moon", mu=0.0), 2)[0], two)
    strong = settings("moon", mu=50.0, weighting="samples")
    assert same_model(play("moon", strong, 1)[0], one)
    assert not same_model(play("moon", strong, 2)[0], two)


def test_its_first_round_is_found_where_fedavg_left_it(tmp_path: Path) -> None:
    play("fedavg", settings("fedavg"), 1, store=store(tmp_path, "fedavg"))
    heard: list[Event] = []
    play("moon", settings("moon"), store=store(tmp_path, "moon"), listener=heard.append)
    assert reused(heard) == [True] * CLIENTS + [False] * CLIENTS
