from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.data.shard import Shard
from fl.federation import TaskOutput, Training
from fl.models import build_decoder, build_generator
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import starting_generator
from fl.wire import Tensors, load_prefixed, prefixed
from tests.fl.toy import CLASSIFIER, GENERATOR, PROBLEM, VGG, same_bits, shard, task_input

DATA = shard(7, 5, 8)
KINDS = pytest.mark.parametrize(
    "training", [CLASSIFIER, VGG, GENERATOR], ids=lambda training: training.model
)
STILL = 1e-12  # a learning rate at which nothing moves


def train(
    training: Training, data: Shard = DATA, *, id: int = 0, seed: int = PROBLEM.seed
) -> TaskOutput:
    return training.task(task_input(training, data, id=id, run_spec=replace(PROBLEM, seed=seed)))


def start_of(training: Training, *, seed: int = PROBLEM.seed) -> Tensors:
    """The starting weights, named as in an upload."""
    run_spec = replace(PROBLEM, seed=seed)
    if isinstance(training, ClassifierConfig):
        return prefixed("classifier", starting_classifier(training, run_spec))
    return prefixed("decoder", starting_generator(training, run_spec).decoder)


def close(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[n], other[n], rtol=1e-4, atol=1e-5) for n in one
    )


def weights(output: TaskOutput) -> Tensors:
    return {n: t for n, t in output.tensors.items() if n != "label_counts"}


@KINDS
def test_the_same_seed_makes_the_same_upload_bit_for_bit(training: Training) -> None:
    first, second = train(training), train(training)
    assert same_bits(first.tensors, second.tensors)
    assert first.stats == second.stats
    assert not close(weights(first), weights(train(training, seed=1)))


@KINDS
def test_a_client_does_not_notice_what_ran_before_it(training: Training) -> None:
    torch.manual_seed(1)
    alone = train(training)
    torch.manual_seed(2)
    torch.rand(5)
    for other in (CLASSIFIER, VGG, GENERATOR):
        train(other, shard(2, 2, 2), id=1)
    assert same_bits(alone.tensors, train(training).tensors)


@KINDS
def test_global_random_state_is_left_as_it_was(training: Training) -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    train(training)
    assert torch.equal(torch.random.get_rng_state(), before)


@KINDS
def test_all_clients_of_an_architecture_start_from_the_same_weights(training: Training) -> None:
    still = replace(training, epochs=1, lr=STILL)
    start = start_of(training)
    for id, data in ((0, DATA), (5, shard(0, 3, 1))):
        assert close(weights(train(still, data, id=id)), start)
    assert not close(weights(train(training)), start)
    assert not close(start_of(training, seed=1), start)


@KINDS
def test_the_start_does_not_depend_on_how_a_client_trains(training: Training) -> None:
    other = replace(training, epochs=9, lr=0.3, batch_size=3)
    assert same_bits(start_of(training), start_of(other))


@KINDS
def test_clients_go_through_their_samples_in_an_order_of_their_own(training: Training) -> None:
    """With the same samples they end elsewhere."""
    assert not close(weights(train(training, id=0)), weights(train(training, id=1)))


def test_order_is_all_that_tells_classifiers_with_the_same_samples_apart() -> None:
    whole = replace(CLASSIFIER, batch_size=len(DATA))
    assert close(train(whole, id=0).tensors, train(whole, id=1).tensors)


@pytest.mark.parametrize("training", [replace(VGG, width=0.05), GENERATOR], ids=lambda t: t.model)
def test_dropout_and_latent_noise_are_a_clients_own(training: Training) -> None:
    """One sample leaves no order in which clients could differ."""
    data = shard(0, 1, 0)
    assert not close(weights(train(training, data, id=0)), weights(train(training, data, id=1)))


@pytest.mark.parametrize("training", [CLASSIFIER, GENERATOR], ids=lambda t: t.model)
def test_training_lowers_the_loss(training: Training) -> None:
    first = train(replace(training, epochs=1)).stats["train_loss"]
    last = train(replace(training, epochs=15)).stats["train_loss"]
    assert last < 0.75 * first


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


def test_a_generators_loss_is_told_per_sample_whichever_way_it_is_reduced() -> None:
    still = replace(GENERATOR, lr=STILL)
    mean, total = (
        train(replace(still, loss_reduction=way)).stats["train_loss"] for way in ("mean", "sum")
    )
    assert mean == pytest.approx(total, rel=1e-5)
    assert 28 * 28 * 0.3 < mean < 28 * 28  # about log 2 for each pixel


@pytest.mark.parametrize("counts", [(7, 5, 8), (0, 4, 0), (1, 0, 30)])
def test_a_generator_uploads_its_exact_label_counts(counts: tuple[int, ...]) -> None:
    uploaded = train(replace(GENERATOR, epochs=1), shard(*counts)).tensors["label_counts"]
    assert uploaded.dtype == torch.int64
    assert uploaded.tolist() == list(counts)


def test_a_generator_uploads_its_decoder_and_no_encoder() -> None:
    decoder = build_decoder("cvae-small", PROBLEM.image_shape, 3, latent=4, width=0.1)
    uploaded = train(GENERATOR).tensors
    assert uploaded.keys() == {*prefixed("decoder", decoder), "label_counts"}
    load_prefixed(decoder, uploaded, "decoder", sender="client 0")


def test_the_whole_cvae_is_uploaded_on_request() -> None:
    whole = build_generator("cvae-small", PROBLEM.image_shape, 3, latent=4, width=0.1)
    uploaded = train(replace(GENERATOR, upload="cvae")).tensors
    load_prefixed(whole, uploaded, "cvae", sender="client 0")
    assert uploaded.keys() == {*prefixed("cvae", whole), "label_counts"}
    assert same_bits(prefixed("decoder", whole.decoder), weights(train(GENERATOR)))


@pytest.mark.parametrize("training", [CLASSIFIER, VGG], ids=lambda t: t.model)
def test_a_classifier_uploads_every_weight_and_nothing_else(training: ClassifierConfig) -> None:
    assert train(training).tensors.keys() == start_of(training).keys()


@KINDS
def test_one_sample_is_enough(training: Training) -> None:
    output = train(training, shard(0, 1, 0))
    assert all(torch.isfinite(t).all() for t in output.tensors.values())
    assert output.stats["train_loss"] > 0
    assert not close(weights(output), start_of(training))


def test_the_decoder_learns_to_draw_the_class_it_is_asked_for() -> None:
    training = replace(GENERATOR, epochs=60, lr=1e-2)
    decoder = build_decoder("cvae-small", PROBLEM.image_shape, 3, latent=4, width=0.1)
    load_prefixed(decoder, train(training).tensors, "decoder", sender="client 0")
    drawn = decoder(torch.zeros(3, 4), torch.eye(3)).sigmoid()
    assert brightest_band(drawn).tolist() == [0, 1, 2]


def brightest_band(images: Tensor) -> Tensor:
    bands = [images[:, 0, 9 * c : 9 * c + 9].mean((1, 2)) for c in range(3)]
    return torch.stack(bands, dim=1).argmax(1)
