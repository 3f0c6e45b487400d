"""Local training of a classifier: its loss, its optimisers, and what it uploads."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fl.errors import UserError
from fl.exchange import ClientNote, Upload, load_prefixed, prefixed
from fl.federation import Update
from fl.methods.fednova import FedNovaConfig
from fl.methods.fedper import LocalFedRep
from fl.methods.scaffold import LocalScaffold
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.personal import PersonalTraining
from fl.training.task import train_many
from tests.fl.toy import CLASSIFIER, PROBLEM, client, shard, task_input
from tests.fl.training.local import DATA, close, start_of, train


def test_order_is_all_that_tells_classifiers_with_the_same_samples_apart() -> None:
    whole = replace(CLASSIFIER, batch_size=len(DATA))
    assert close(train(whole, id=0).tensors, train(whole, id=1).tensors)


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.05), ("adam", 0.01)])
def test_a_classifier_learns_to_tell_the_classes_apart(optimizer: Any, lr: float) -> None:
    training = replace(CLASSIFIER, epochs=20, lr=lr, optimizer=optimizer)
    model = starting_classifier(training, PROBLEM)
    load_prefixed(model, train(training).tensors, "classifier", sender="client 0")
    test = shard(5, 5, 5, seed=9)
    assert torch.equal(model(test.images).argmax(1), test.labels)


def test_sgd_has_momentum_and_minimises_cross_entropy() -> None:
    """Three steps on the whole shard, by hand."""
    training = replace(CLASSIFIER, epochs=3, momentum=0.7, batch_size=len(DATA))
    model = starting_classifier(training, PROBLEM)
    velocities = [torch.zeros_like(p) for p in model.parameters()]
    for _ in range(3):
        chances = model(DATA.images).softmax(1)
        loss = -chances[torch.arange(len(DATA)), DATA.labels].log().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g, v in zip(model.parameters(), gradients, velocities, strict=True):
                v.mul_(0.7).add_(g)
                p.sub_(training.lr * v)
    output = train(training)
    assert close(output.tensors, prefixed("classifier", model))
    assert output.stats["train_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_a_paced_training_with_adamw_is_torchs_in_the_second_round_too() -> None:
    """Four steps on the whole shard; the rate of a round is counted from the first."""
    pace: dict[str, Any] = {"schedule": "cosine", "round_decay": 0.5, "max_norm": 0.3}
    pace |= {"optimizer": "adamw", "weight_decay": 0.2, "epochs": 4, "batch_size": len(DATA)}
    training = replace(CLASSIFIER, **pace)
    for round in (1, 2):
        model = starting_classifier(training, PROBLEM)
        rate = training.lr * 0.5 ** (round - 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.2)
        paces = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(DATA.images), DATA.labels).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            paces.step()
        inputs = replace(task_input(training, DATA, id=0, run_spec=PROBLEM), round=round)
        found = training.task(inputs).tensors
        assert close(found, prefixed("classifier", model)), round


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_client_with_a_schedule_trains_alone_as_in_company(schedule: Any) -> None:
    training = replace(CLASSIFIER, schedule=schedule, warmup=0.25, epochs=3)
    inputs = [
        task_input(training, data, id=k, run_spec=PROBLEM)
        for k, data in enumerate((DATA, shard(2, 3, 1, seed=4)))
    ]
    together = train_many(training.task, inputs)
    for own, found in zip(inputs, together, strict=True):
        alone = training.task(own).tensors
        assert all(torch.equal(alone[n], found.tensors[n]) for n in alone)


@pytest.mark.parametrize(
    "setting",
    [
        *({"schedule": "step"}, {"warmup": 0.1}, {"round_decay": 0.9}, {"max_norm": 1.0}),
        {"validation": 0.1},
    ],
)
def test_who_takes_steps_of_one_rate_says_so(setting: dict[str, Any]) -> None:
    for refusing in (LocalScaffold, PersonalTraining, LocalFedRep):
        with pytest.raises(
            UserError, match=r"needs a constant learning rate: leave out schedule, warmup, round_d"
        ):
            refusing(**setting)
    with pytest.raises(UserError, match="fednova needs a constant learning rate"):
        FedNovaConfig(classifier=ClassifierConfig(**setting))


def test_of_what_stays_with_a_client_the_form_is_checked_and_no_weight_is_read() -> None:
    class Unread(Upload):
        def __getitem__(self, name: str) -> torch.Tensor:
            raise AssertionError(f"{name} was read")

    update = Update(
        client=client(0),
        tensors=Unread(ClientNote(seconds=0.0).pack(start_of(CLASSIFIER))),
        stats={},
        seconds=0.0,
        reused=False,
        private=True,
    )
    CLASSIFIER.check_upload(update, PROBLEM)
    with pytest.raises(AssertionError, match="was read"):
        CLASSIFIER.check_upload(replace(update, private=False), PROBLEM)
    with pytest.raises(ValueError, match=r"expected torch.float32 \("):
        replace(CLASSIFIER, width=2.0).check_upload(update, PROBLEM)
