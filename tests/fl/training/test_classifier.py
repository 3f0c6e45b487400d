"""Local training of a classifier: its loss, its optimisers, and what it uploads."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fl.errors import UserError
from fl.exchange import ClientNote, Upload, load_prefixed, prefixed
from fl.federation import Update
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import GeneratorConfig
from tests.fl.toy import CLASSIFIER, PROBLEM, VGG, client, shard
from tests.fl.training.local import DATA, STILL, close, start_of, train


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


@pytest.mark.parametrize("batch_size", [3, 8, 100])
def test_the_training_loss_is_the_mean_over_every_sample(batch_size: int) -> None:
    """Also where the last batch is smaller."""
    training = replace(CLASSIFIER, epochs=2, lr=STILL, batch_size=batch_size)
    logits = starting_classifier(training, PROBLEM)(DATA.images)
    expected = F.cross_entropy(logits, DATA.labels).item()
    assert train(training).stats["train_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("training", [CLASSIFIER, VGG], ids=lambda t: t.model)
def test_a_classifier_uploads_every_weight_and_nothing_else(training: ClassifierConfig) -> None:
    assert train(training).tensors.keys() == start_of(training).keys()


def test_a_word_that_is_none_of_the_types_is_refused() -> None:
    with pytest.raises(UserError, match=r"^unknown optimizer 'lion'; valid: adam, sgd$"):
        ClassifierConfig(optimizer="lion")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^unknown upload 'all'; valid: cvae, decoder$"):
        GeneratorConfig(upload="all")  # type: ignore[arg-type]


def test_each_role_trains_its_own_kind_of_model() -> None:
    with pytest.raises(UserError, match=r"^unknown model 'cvae-small'; valid: cnn, "):
        ClassifierConfig(model="cvae-small")
    with pytest.raises(UserError, match=r"^unknown model 'vgg9'; valid: cvae-"):
        GeneratorConfig(model="vgg9")


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
