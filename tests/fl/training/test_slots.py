"""Clients in slots: the same training, whoever is in the wave, in steps that can be captured."""

from dataclasses import replace
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from fl.federation import TaskInput, TaskOutput
from fl.training import slots
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from fl.training.task import train_many
from tests.fl.devices import DEVICE, Where, on_both
from tests.fl.graphs import pretended_graphs
from tests.fl.operations import assert_can_be_captured, of_every_step
from tests.fl.toy import CLASSIFIER, GENERATOR, VGG, same_bits, shard, task_input
from tests.fl.training.cohorts import (
    DIFFERENT,
    SIZES,
    STACKABLE,
    WIDE,
    assert_close,
    inputs,
    recipe_for,
    rounded_alike,
)
from tests.fl.training.plain import train_plainly


def in_slots(cohort: list[TaskInput], count: int = 6) -> list[TaskOutput]:
    return slots.train([recipe_for(own) for own in cohort], slots=count)


@pytest.mark.parametrize("kind", STACKABLE)
def test_clients_in_slots_train_as_one_by_one_whoever_is_beside_them(kind: str) -> None:
    """After several epochs, with shards of very different sizes."""
    _, training = STACKABLE[kind]
    with rounded_alike(kind) as run_spec:
        cohort = [inputs(training, size, k, run_spec) for k, size in enumerate(SIZES)]
        assert slots.conflict(recipe_for(cohort[1])) is None
        everyone, backwards = in_slots(cohort), in_slots(cohort[::-1])[::-1]
        plain = [train_plainly(own, recipe_for(own)) for own in cohort]
        ends = {k: in_slots([cohort[k]]) for k in (0, len(SIZES) - 1)}
    for k in range(len(SIZES)):
        assert_close(everyone[k], plain[k])
        alone = ends.get(k, [])
        for other in (backwards[k], *alone):
            # On some CPUs a product's last bits depend on where its numbers lie, so on the
            # slot. Clients train in slots on a card alone.
            assert_close(everyone[k], other)
            assert DEVICE != "cuda" or same_bits(everyone[k].tensors, other.tensors)
            assert len(other.losses) == other.stats["epochs"] == everyone[k].stats["epochs"]


def test_each_client_stops_when_its_own_loss_no_longer_falls() -> None:
    how = {**WIDE, "epochs": 12, "batch_size": 64}
    training = GeneratorConfig(latent=4, lr=0.05, patience=1, **how)
    cohort = [inputs(training, size, k) for k, size in enumerate((1, 7, 64, 65, 200))]
    stopped = [train_plainly(own, recipe_for(own)).stats["epochs"] for own in cohort]
    assert len(set(stopped)) > 2
    assert [output.stats["epochs"] for output in in_slots(cohort)] == stopped


@pytest.mark.parametrize("ahead", [1, 3])
def test_steps_sent_at_once_change_no_bit(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = [inputs(GENERATOR, size, k) for k, size in enumerate((3, 21, 9))]
    usual = in_slots(cohort)
    monkeypatch.setattr(slots, "AHEAD", ahead)
    for one, other in zip(usual, in_slots(cohort), strict=True):
        assert same_bits(one.tensors, other.tensors)
        assert one.losses == other.losses


@pytest.mark.parametrize("kind", DIFFERENT)
def test_a_replayed_wave_has_the_bits_of_one_that_is_run(kind: str) -> None:
    run_spec, training = STACKABLE[kind]
    cohort = [inputs(training, size, k, run_spec) for k, size in enumerate(SIZES)]
    expected = in_slots(cohort)
    with pretended_graphs() as graphs:
        found = in_slots(cohort)
    assert [graph.replays for graph in graphs] == [10]  # of 12 steps
    for one, other in zip(found, expected, strict=True):
        assert same_bits(one.tensors, other.tensors)
        assert one.losses == other.losses


@pytest.mark.parametrize("kind", ["cvae-mlp", *DIFFERENT])
def test_a_step_is_the_same_operations_each_time_and_waits_for_none(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it can be captured; and they are as many for five clients as for one."""
    run_spec, training = STACKABLE[kind]
    found = of_every_step(monkeypatch)
    for clients in (1, 5):
        in_slots([inputs(training, 20, k, run_spec) for k in range(clients)], 5)
    one, five = found.values()
    assert_can_be_captured(one)
    assert five == one
    if kind in ("cvae-mlp", "cvae-mlp-sum"):  # by the formula
        assert len(one[1]) <= 25


class Averages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(28 * 28, 3), nn.BatchNorm1d(3)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.layer(images.flatten(1)))


class Asks(Averages):
    def forward(self, images: Tensor) -> Tensor:
        x = self.layer(images.flatten(1))
        return x if x.sum() > 0 else -x


class Drops(Averages):
    def forward(self, images: Tensor) -> Tensor:
        return F.dropout(self.layer(images.flatten(1)), 0.5, self.training)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Averages(), "depends on the other samples"),
        (Asks(), "raises RuntimeError"),
        (Drops(), "raises RuntimeError"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_models_that_slots_would_train_otherwise_are_found_out(
    model: nn.Module, reason: str
) -> None:
    recipe = replace(recipe_for(inputs(CLASSIFIER, 9, 0)), model=model)
    assert reason in (slots.conflict(recipe) or "")


def test_trainings_that_do_not_fit_into_slots_are_found_out() -> None:
    cnn = ClassifierConfig(model="cnn", **WIDE)
    reasons = {
        "has more than": VGG if VGG.width == 1 else replace(VGG, width=1.0),
        "has a schedule": replace(cnn, schedule="cosine"),
        "samples of its own": replace(cnn, validation=0.3),
        "passed in parts": replace(cnn, micro_batch=4),
    }
    for reason, training in reasons.items():
        assert reason in (slots.conflict(recipe_for(inputs(training, 9, 0))) or "")
    anew = replace(inputs(cnn, 9, 0), shard=replace(shard(9, 0, 3), augment=lambda x: x))
    assert slots.conflict(recipe_for(anew)) == "its batches are made one by one"


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="a step is captured on a real GPU alone")
@pytest.mark.parametrize(
    "training",
    [
        GENERATOR,
        replace(GENERATOR, patience=1),
        ClassifierConfig(model="cnn", optimizer="adam", **WIDE),
        ClassifierConfig(model="cnn", lr=0.05, proximal=0.3, **WIDE),
    ],
    ids=["cvae", "cvae-patience", "cnn-adam", "cnn-proximal"],
)
def test_a_gpu_trains_in_slots_as_the_cpu_does(
    training: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []

    def slotted(*own: Any) -> list[TaskOutput]:
        trained.append(own)
        return in_slots_as_it_is(*own)

    def work(where: Where) -> list[TaskOutput]:
        monkeypatch.setattr(slots, "suits", lambda device: device.type == "cuda")
        given = [task_input(training, data, id=k) for k, data in enumerate(SHARDS)]
        return train_many(training.task, [replace(g, device=where.device) for g in given])

    in_slots_as_it_is = slots.train
    monkeypatch.setattr(slots, "train", slotted)
    on_cpu, on_gpu = on_both(work)
    assert len(trained) == 1
    for one, other in zip(on_cpu, on_gpu, strict=True):
        assert_close(one, other)


SHARDS = [shard(6, 0, 3), shard(1, 1, 1), shard(40, 2, 5)]
