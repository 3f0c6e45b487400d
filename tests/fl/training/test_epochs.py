"""What holds of every training that goes over a client's samples in epochs."""

import copy
import json
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, asdict, replace

import pytest
import torch
from torch import nn

from fl.condensation.kip import KipTraining
from fl.condensation.task import LocalCondensation
from fl.errors import UserError
from fl.federation import RunSpec, Training
from fl.fusion.fit import Fit, FitConfig, FitSpec
from fl.fusion.inversion import DistillationLoss
from fl.inputs import Inputs
from fl.models.registry import build_classifier, register_model, smallest_batch, smallest_batch_of
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from fl.training.recipe import cut
from fl.training.task import train_many
from tests.fl.toy import CLASSIFIER, GENERATOR, VGG, same_bits, shard, task_input
from tests.fl.training.cohorts import inputs
from tests.fl.training.local import DATA, STILL, close, start_of, train, weights
from tests.registries import registries_restored

KINDS = pytest.mark.parametrize(
    "training", [CLASSIFIER, VGG, GENERATOR], ids=lambda training: training.model
)


@KINDS
def test_an_upload_follows_from_the_seed_whatever_ran_before(training: Training) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = train(training)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    train(CLASSIFIER, shard(2, 2, 2), id=1)
    second = train(training)
    assert same_bits(first.tensors, second.tensors)
    assert first.stats == second.stats
    assert not close(weights(first), weights(train(training, seed=1)))


@KINDS
def test_all_clients_of_an_architecture_start_from_the_same_weights(training: Training) -> None:
    still = replace(training, epochs=1, lr=STILL)
    start = start_of(training)
    for id, data in ((0, DATA), (5, shard(0, 3, 1))):
        assert close(weights(train(still, data, id=id)), start)
    assert not close(weights(train(training)), start)
    assert not close(start_of(training, seed=1), start)
    assert same_bits(start_of(replace(training, epochs=9, lr=0.3, batch_size=3)), start)


@KINDS
def test_clients_go_through_their_samples_in_an_order_of_their_own(training: Training) -> None:
    """With the same samples they end elsewhere."""
    assert not close(weights(train(training, id=0)), weights(train(training, id=1)))


@pytest.mark.parametrize("training", [replace(VGG, width=0.05), GENERATOR], ids=lambda t: t.model)
def test_dropout_and_latent_noise_are_a_clients_own(training: Training) -> None:
    """One sample leaves no order in which clients could differ."""
    data = shard(0, 1, 0)
    assert not close(weights(train(training, data, id=0)), weights(train(training, data, id=1)))


@KINDS
def test_one_sample_is_enough(training: Training) -> None:
    output = train(training, shard(0, 1, 0))
    assert all(torch.isfinite(t).all() for t in output.tensors.values())
    assert output.stats["train_loss"] > 0
    assert not close(weights(output), start_of(training))


RECORDS = [ClassifierConfig(), GeneratorConfig(), LocalCondensation(), KipTraining()]


@pytest.mark.parametrize("made", RECORDS, ids=lambda made: type(made).__name__)
def test_a_record_is_frozen_and_made_of_json_values(made: Training) -> None:
    """The store makes its keys of them."""
    values = json.loads(json.dumps(asdict(made)))
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    assert type(made)(**{**values, **lists}) == made
    with pytest.raises(FrozenInstanceError):
        made.lr = 2.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("made", RECORDS, ids=lambda made: type(made).__name__)
def test_only_what_takes_time_or_memory_tells_speeds_apart(made: Training) -> None:
    length = "epochs" if hasattr(made, "epochs") else "steps"
    assert replace(made, lr=0.9, **{length: 99}).speed_settings() == made.speed_settings()
    size = "targets" if isinstance(made, KipTraining) else "batch_size"
    assert replace(made, **{size: 9}).speed_settings() != made.speed_settings()


# Batches that the model can be trained on.

SMALL = RunSpec.of_images((1, 8, 8), num_classes=3, seed=0)


@pytest.fixture(autouse=True)
def _mine() -> Iterator[None]:
    body = nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
    with registries_restored():
        register_model("mine", lambda: copy.deepcopy(nn.Sequential(*body)))
        yield


def test_a_last_batch_of_one_joins_the_one_before_only_where_two_are_needed() -> None:
    rows = torch.arange(9)
    assert [len(part) for part in cut(rows, 4)] == [4, 4, 1]
    assert [len(part) for part in cut(rows, 4, 2)] == [4, 5]
    assert [len(part) for part in cut(rows, 3, 2)] == [3, 3, 3]
    assert torch.equal(torch.cat(list(cut(rows, 4, 2))), rows)
    with pytest.raises(ValueError, match="has 1 sample, but the model's BatchNorm needs 2"):
        cut(rows[:1], 4, 2)


@pytest.mark.parametrize(
    ("model", "shape", "least"),
    [
        ("mine", (1, 8, 8), 2),
        ("resnet18", (1, 8, 8), 2),
        ("resnet18", (1, 64, 64), 1),  # batches of one were trained before, and are still
        ("convnet", (1, 8, 8), 1),
        ("cnn", (1, 28, 28), 1),
    ],
)
def test_a_batch_of_one_is_tried(model: str, shape: tuple[int, int, int], least: int) -> None:
    assert smallest_batch(build_classifier(model, shape, 3, width=0.1)) == least
    assert smallest_batch_of(model, Inputs(shape), 3, 0.1) == least


@pytest.mark.parametrize("model", ["mine", "resnet18"])
def test_clients_with_a_sample_over_train_together_as_alone(model: str) -> None:
    training = ClassifierConfig(model=model, width=0.05, epochs=1, batch_size=4)
    cohort = [inputs(training, size, size, SMALL) for size in (5, 9)]
    outputs = train_many(training.task, cohort)
    for own, output in zip(cohort, outputs, strict=True):
        alone = train_many(training.task, [own])[0]
        assert all(torch.equal(alone.tensors[n], t) for n, t in output.tensors.items())
    with pytest.raises(ValueError, match="has 1 sample"):
        train_many(training.task, [inputs(training, 1, 1, SMALL)])


def test_a_batch_size_of_one_is_refused_before_the_run() -> None:
    with pytest.raises(UserError, match=r"batch_size must be at least 2 for mine .* got 1"):
        ClassifierConfig(model="mine", batch_size=1).check(SMALL)


def test_the_servers_fit_joins_it_too() -> None:
    model = build_classifier("mine", SMALL.image_shape, 3)
    data = {"images": torch.rand(9, 1, 8, 8), "teacher_logits": torch.rand(9, 3)}
    spec = FitSpec(
        model=model,
        columns={},
        loss=DistillationLoss(1.0),
        config=FitConfig(epochs=1, batch_size=4),
        stage="fusion",
        streams="fusion",
    )
    (losses,) = Fit(spec, data, seed=0).epochs()
    assert len(losses) == 2


@pytest.mark.parametrize("least", [1, 2, 3])
def test_steps_are_as_many_as_there_are_batches(least: int) -> None:
    training = ClassifierConfig(model="cnn", epochs=3, batch_size=5)
    for count in range(least, 20):
        batches = cut(torch.arange(count), training.batch_size, least)
        assert training.steps(count, least) == 3 * len(batches)


@pytest.mark.parametrize("label", [-100, -1, 3])
@pytest.mark.parametrize("training", [CLASSIFIER, GENERATOR], ids=["classifier", "generator"])
def test_a_label_that_is_no_class_is_refused_by_name(label: int, training: Training) -> None:
    """Cross-entropy leaves -100 out, and its mean is NaN where no other is left."""
    own = shard(3, 3, 3)
    own = replace(own, labels=own.labels.index_fill(0, torch.tensor([4]), label))
    with pytest.raises(UserError, match=f"^label {label}; allowed: 0 to 2$"):
        train_many(training.task, [task_input(training, own)])
