"""SCAFFOLD against a plain loop, in which clients are absent, and what it sends."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.errors import UserError
from fl.methods.prototypes import participants
from fl.training.task import conflict
from tests.fl.methods.averaged import (
    CLIENTS,
    SMALL,
    WITHOUT_NORM,
    averaged,
    batches,
    close,
    federation,
    play,
    samples,
    settings,
    start,
)
from tests.fl.toy import shard, task_input

LOCAL = {**WITHOUT_NORM, "momentum": 0.0}


def naive(who: list[list[int]], there: int = CLIENTS) -> dict[str, Tensor]:
    """Algorithm 1 with option II."""
    x = start(LOCAL)
    names = [name for name, _ in x.named_parameters()]
    c = {n: torch.zeros_like(p) for n, p in x.named_parameters()}
    own = [deepcopy(c) for _ in range(CLIENTS)]
    for number, chosen in enumerate(who, start=1):
        states, before = [], deepcopy(c)
        for k in chosen:
            y, tau = deepcopy(x), 0
            images, labels = samples(k)
            for rows in batches(k, number):
                y.zero_grad()
                F.cross_entropy(y(images[rows]), labels[rows]).backward()
                for n, p in y.named_parameters():
                    p.data -= SMALL["lr"] * (p.grad + before[n] - own[k][n])
                tau += 1
            states.append(y.state_dict())
            for n in names:
                moved = (x.state_dict()[n] - y.state_dict()[n]) / (tau * SMALL["lr"])
                change = moved - before[n]
                own[k][n] = own[k][n] + change
                c[n] = c[n] + change / there
        x.load_state_dict(averaged(states, [1 / len(chosen)] * len(chosen)))
    return x.state_dict()


def test_rounds_with_absent_clients_are_those_of_the_plain_loop() -> None:
    half = settings("scaffold", LOCAL, participation=0.5)
    clients, _ = federation("scaffold", half)
    who = [participants(clients, half, number) for number in (1, 2, 3, 4)]
    assert len({tuple(chosen) for chosen in who}) > 1
    assert close(play("scaffold", half, 4)[0], naive(who))
    assert not close(play("scaffold", half, 4)[0], naive([who[0]] * 4), atol=1e-3)


def test_who_takes_part_in_no_round_shares_no_control() -> None:
    there = CLIENTS - 1
    outcome, _ = play("scaffold", settings("scaffold", LOCAL, newcomers=1), 3)
    assert close(outcome, naive([list(range(there))] * 3, there))


def test_a_run_that_may_drop_clients_is_refused() -> None:
    with pytest.raises(UserError, match="on_client_failure drop: the control of a dropped client"):
        play("scaffold", settings("scaffold", LOCAL), 2, on_failure="drop")


def test_weights_and_controls_are_sent_both_ways() -> None:
    _, clients = play("scaffold", settings("scaffold", LOCAL), 2)
    size = sum(4 * p.numel() for p in start(LOCAL).parameters())
    everyone = range(CLIENTS)
    assert clients.bytes_up == dict.fromkeys(everyone, 2 * 2 * size)
    # In the first round all know the start and the controls, which are 0.
    assert clients.bytes_down == dict.fromkeys(everyone, 2 * size)


def test_its_clients_train_in_cohorts() -> None:
    training = settings("scaffold", LOCAL).classifier
    assert conflict(training.recipe, task_input(training, shard(5, 5, 5))) is None


@pytest.mark.parametrize("local", [{"optimizer": "adam"}, {"momentum": 0.9}, {"proximal": 0.1}])
def test_other_than_plain_steps_are_refused(local: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(local))):
        settings("scaffold", LOCAL, **local)
