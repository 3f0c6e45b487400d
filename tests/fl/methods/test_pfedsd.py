"""pFedSD against a plain loop, and where it is FedAvg to the last bit."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from tests.fl.methods.personal_runs import (
    CLIENTS,
    alone,
    averaged,
    close,
    curve,
    fedavg,
    ledgers,
    memories,
    model_of,
    play,
    samples,
    settings,
    start,
    train,
)
from tests.fl.toy import same_bits


def naive(rounds: int, weight: float, tau: float) -> dict[str, Tensor]:
    model = start(settings("pfedsd"))
    last: dict[int, nn.Module] = {}
    for number in range(1, rounds + 1):
        for k in range(CLIENTS):
            teacher, images = last.get(k), samples(k)[0]

            def further(_: nn.Module, logits: Tensor, rows: Tensor) -> Tensor:
                if teacher is None:  # noqa: B023
                    return torch.zeros(())
                with torch.no_grad():
                    soft = (teacher(images[rows]) / tau).softmax(1)  # noqa: B023
                own = (logits / tau).softmax(1)
                return weight * tau**2 * (soft * (soft / own).log()).sum(1).mean()

            last[k] = train(deepcopy(model), k, number, further=further)
        model.load_state_dict(averaged([last[k].state_dict() for k in last], [1] * CLIENTS))
    return model.state_dict()


def test_three_rounds_are_those_of_a_plain_loop() -> None:
    outcome, _ = play("pfedsd", settings("pfedsd", weight=2.0, temperature=3.0))
    assert close(naive(3, 2.0, 3.0), model_of(outcome))
    assert not close(naive(3, 0.0, 3.0), model_of(outcome), atol=1e-4)


def test_without_the_teacher_and_in_its_first_round_it_is_fedavg() -> None:
    expected, theirs = fedavg(weighting="uniform")
    found, ours = play("pfedsd", settings("pfedsd", weight=0.0))
    assert same_bits(model_of(found), model_of(expected))
    assert ledgers(ours) == ledgers(theirs)
    first, _ = play("pfedsd", settings("pfedsd", weight=9.0), 1)
    assert same_bits(model_of(first), model_of(fedavg(1, weighting="uniform")[0]))


def test_clients_are_scored_by_their_own_last_models() -> None:
    outcome, clients = play("pfedsd", settings("pfedsd"), 1)
    assert curve(outcome)[0] == curve(alone()[0])[0]
    assert not same_bits(memories(clients)[0], memories(clients)[1])
