"""A client by itself, by steps that a GPU replays: the same training as one by one."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fl.federation import Batch, TaskInput, TaskOutput, Training
from fl.training import captured
from fl.training.captured import DeviceSteps
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from fl.training.recipe import Recipe, one_by_one
from kernels.dropout import mix
from tests.fl.devices import DEVICE
from tests.fl.operations import assert_can_be_captured, of_every_step
from tests.fl.toy import CPU, VGG, same_bits
from tests.fl.training.cohorts import WIDE, assert_close, cross_entropies, inputs, recipe_for

CNN = ClassifierConfig(model="cnn", lr=0.05, **WIDE)
TRAININGS = {
    "sgd": CNN,
    "adam": replace(CNN, optimizer="adam", lr=2e-3),
    "proximal": replace(CNN, proximal=0.3),
    "patience": replace(CNN, lr=0.5, epochs=12, patience=1),
    "batch norm": replace(CNN, model="convnet"),
}


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but that no step is captured: they are too few."""
    monkeypatch.setattr(captured, "can_capture", lambda device: True)
    monkeypatch.setattr(captured, "WORTH_IT", 10**6)


def by_itself(training: Training, size: int = 50, round: int = 1) -> TaskOutput:
    own = replace(inputs(training, size, 3), round=round)
    return captured.train(own, recipe_for(own))


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("name", TRAININGS)
def test_it_trains_to_the_bits_of_one_by_one(name: str) -> None:
    own = inputs(TRAININGS[name], 50, 3)
    expected, found = one_by_one(own, recipe_for(own)), by_itself(TRAININGS[name])
    assert same_bits(found.tensors, expected.tensors)
    assert found.stats == pytest.approx(expected.stats, rel=1e-6)
    assert found.losses == pytest.approx(expected.losses, rel=1e-4)


@pytest.mark.usefixtures("replaying")
def test_masks_follow_from_seed_client_and_round_and_leave_torchs_stream_alone() -> None:
    first, again, later = by_itself(VGG), by_itself(VGG), by_itself(VGG, round=2)
    assert same_bits(first.tensors, again.tensors)
    assert not same_bits(first.tensors, later.tensors)


@pytest.mark.parametrize("training", [CNN, VGG], ids=["cnn", "vgg9"])
def test_a_step_is_the_same_operations_each_time_and_waits_for_none(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "can_capture", lambda device: True)
    found = of_every_step(monkeypatch)
    by_itself(training)
    (times,) = found.values()
    assert_can_be_captured(times)


def test_a_step_sees_its_rows_of_columns_of_all_widths_and_types() -> None:
    """Short rows are laid out as bytes, long ones are read by number; the last batch is smaller."""
    columns = {
        "bytes": torch.arange(33, dtype=torch.uint8).view(11, 3),
        "long": torch.arange(11.0).unsqueeze(1).repeat(1, 300),
        "flags": torch.arange(11) % 2 == 0,
        "doubles": torch.arange(22, dtype=torch.float64).view(11, 1, 2),
        "floats": torch.arange(11.0),
    }
    seen: list[Batch] = []

    def step(batch: Batch) -> Tensor:
        batch["floats"].add_(0)  # a version of its own
        seen.append(batch)
        return batch["floats"].sum()

    steps = DeviceSteps(columns, 4, step, 2)
    for epoch in range(2):
        batches = [*torch.randperm(11, generator=torch.Generator().manual_seed(epoch)).split(4)]
        losses = steps.train(batches, common=epoch)
        assert [loss.item() for loss in losses] == [rows.sum().item() for rows in batches]
        for rows, batch in zip(batches, seen[-3:], strict=True):
            assert batch.keys() == {*columns, "key"}
            assert torch.equal(batch["key"], mix(rows ^ epoch))
            for name, column in columns.items():
                assert batch[name].dtype == column.dtype
                assert torch.equal(batch[name], column[rows])


def test_what_may_change_from_step_to_step_is_not_replayed() -> None:
    """A schedule, samples read anew, a model's state in Python: a graph would not see them."""
    own = inputs(CNN, 20, 3)
    plain = recipe_for(own)
    assert captured.planned(plain) is not None
    refused = [
        recipe_for(inputs(replace(CNN, schedule="cosine"), 20, 3)),
        recipe_for(inputs(replace(CNN, validation=0.3), 20, 3)),
        recipe_for(inputs(GeneratorConfig(latent=4, **WIDE), 20, 3)),
        replace(plain, losses=cross_entropies),  # not of this package
        recipe_for(replace(own, shard=replace(own.shard, augment=lambda x: x))),
    ]
    plain.model.training_loss = lambda images, labels: images.sum()  # type: ignore[assignment]
    for recipe in (*refused, plain):
        assert captured.planned(recipe) is None


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="a step is captured on a real GPU alone")
@pytest.mark.parametrize("training", [CNN, VGG], ids=["cnn", "vgg9"])
def test_a_gpu_replays_what_the_cpu_does_step_by_step(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = replace(training, epochs=12)
    on_gpu = captured.train(*with_recipe(long, torch.device("cuda")))
    monkeypatch.setattr(captured, "can_capture", lambda device: True)
    monkeypatch.setattr(captured, "WORTH_IT", 10**6)
    assert_close(on_gpu, captured.train(*with_recipe(long, CPU)))


def with_recipe(training: Training, device: torch.device) -> tuple[TaskInput, Recipe]:
    own = replace(inputs(training, 50, 3), device=device)
    return own, recipe_for(own)
