"""Batches that the model can be trained on."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fl.errors import UserError
from fl.federation import RunSpec
from fl.fusion.fit import Fit, FitConfig, FitSpec
from fl.fusion.inversion import DistillationLoss
from fl.inputs import Inputs
from fl.models import build_classifier
from fl.models.registry import MODELS, register_model
from fl.training.batches import cut, smallest_batch, smallest_batch_of
from fl.training.classifier import ClassifierConfig
from fl.training.task import train_many
from tests.fl.training.cohorts import inputs

SMALL = RunSpec.of_images((1, 8, 8), num_classes=3, seed=0)


@pytest.fixture(autouse=True)
def _mine() -> Iterator[None]:
    before = dict(MODELS)
    register_model(
        "mine",
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
        ),
    )
    yield
    MODELS.clear()
    MODELS.update(before)


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
    with pytest.raises(UserError, match="batch_size is 1; on such samples mine needs at least 2"):
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
