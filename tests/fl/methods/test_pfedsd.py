"""pFedSD against a plain loop, and where it is FedAvg to the last bit."""

from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from fl.training.task import conflict, recipe_of
from tests.fl.methods.personal_runs import (
    CLIENTS,
    averaged,
    close,
    curve,
    memories,
    model_of,
    play,
    samples,
    settings,
    start,
    store,
    train,
)
from tests.fl.toy import same_bits, shard, task_input


def naive(rounds: int, weight: float, tau: float) -> dict[str, Tensor]:
    model = start(settings("pfedsd"))
    last: dict[int, nn.Module] = {}
    for number in range(1, rounds + 1):
        for k in range(CLIENTS):
            teacher, images = last.get(k), samples(k)[0]

            def further(logits: Tensor, rows: Tensor) -> Tensor:
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
    fedavg = settings("fedavg", weighting="uniform")
    expected, theirs = play("fedavg", fedavg)
    found, ours = play("pfedsd", settings("pfedsd", weight=0.0))
    assert same_bits(model_of(found), model_of(expected))
    assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)
    first, _ = play("pfedsd", settings("pfedsd", weight=9.0), 1)
    assert same_bits(model_of(first), model_of(play("fedavg", fedavg, 1)[0]))


def test_clients_are_scored_by_their_own_last_models(tmp_path: Path) -> None:
    outcome, clients = play("pfedsd", settings("pfedsd"), 2, store=store(tmp_path))
    alone, _ = play("local", settings("local"), 1)
    assert curve(outcome)[0] == curve(alone)[0]
    assert not same_bits(memories(clients)[0], memories(clients)[1])


def test_its_clients_train_in_cohorts() -> None:
    recipe = recipe_of(settings("pfedsd").classifier.task)
    assert recipe is not None
    assert conflict(recipe, task_input(settings("pfedsd").classifier, shard(5, 5, 5))) is None
