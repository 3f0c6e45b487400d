"""FedMD against a plain loop over clients, and what it sends."""

import inspect
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from fl.events import ClientEnd, Event
from fl.methods.fedmd import train_on_public
from fl.methods.prototypes import participants
from fl.methods.registry import get_method
from fl.seeding import seed_for
from fl.training.task import conflict
from tests.fl.methods.personal_runs import (
    BATCH,
    CLIENTS,
    LOCAL,
    SPEC,
    play,
    remembered,
    settings,
    start,
    store,
    train,
)

PUBLIC = torch.rand(40, *SPEC.image_shape, generator=torch.Generator().manual_seed(1))
INPUTS = {"auxiliary": PUBLIC}


def learn(model: nn.Module, k: int, number: int, consensus: Tensor) -> None:
    sgd = optim.SGD(model.parameters(), lr=LOCAL["lr"], momentum=0.9)
    purpose = "public/order" if number == 1 else f"public/order/round {number}"
    order = torch.Generator().manual_seed(seed_for(0, purpose, k))
    for _ in range(2):
        for rows in torch.randperm(len(PUBLIC), generator=order).split(BATCH):
            loss = F.kl_div(
                model(PUBLIC[rows]).log_softmax(1),
                consensus[rows].softmax(1),
                reduction="batchmean",
            )
            sgd.zero_grad()
            loss.backward()
            sgd.step()


def test_three_rounds_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    config = settings("fedmd", own_epochs=3)
    outcome, clients = play("fedmd", config, store=store(tmp_path), inputs=INPUTS)
    own = [start(config) for _ in range(CLIENTS)]
    for number in (1, 2, 3):
        for k, model in enumerate(own):
            if number == 1:
                train(model, k, number, epochs=3)
        with torch.no_grad():
            consensus = torch.stack([model(PUBLIC) for model in own]).mean(0)
        for k, model in enumerate(own):
            learn(model, k, number, consensus)
            train(model, k, number)
    assert remembered(clients, own, atol=1e-4)
    assert outcome.model is None
    each = 3 * len(PUBLIC) * 10 * 4
    assert clients.bytes_up == clients.bytes_down == dict.fromkeys(range(CLIENTS), each)


def test_clients_learn_from_public_images_in_cohorts() -> None:
    from dataclasses import replace

    from tests.fl.toy import shard, task_input

    inputs = task_input(settings("fedmd").classifier, shard(5, 5, 5))
    known = {"public": torch.rand(20, 1, 28, 28), "consensus": torch.randn(20, 3)}
    assert conflict(inspect.unwrap(train_on_public), replace(inputs, broadcast=known)) is None
    assert get_method("fedmd").auxiliary is not None


def test_who_takes_part_later_trains_alone_first_too() -> None:
    config = settings("fedmd", own_epochs=3, participation=0.5)
    heard: list[Event] = []
    _, clients = play("fedmd", config, listener=heard.append, inputs=INPUTS)
    who = [participants(clients, config, number) for number in (1, 2, 3)]
    assert not set(who[1] + who[2]) <= set(who[0])
    first: dict[int, int] = {}
    for event in heard:
        if isinstance(event, ClientEnd) and "epochs" in event.stats:
            first.setdefault(event.client, event.stats["epochs"])
    assert first == dict.fromkeys(first, 3)
