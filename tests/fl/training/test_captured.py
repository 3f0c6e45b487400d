"""Clients side by side, by steps that a GPU replays: the same training as one by one."""

import gc
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fl.federation import Batch, TaskInput, TaskOutput, Training
from fl.training import captured
from fl.training.captured import DeviceSteps
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from fl.training.recipe import minimise, one_by_one
from kernels.dropout import mix
from tests.fl.devices import DEVICE
from tests.fl.graphs import pretended_graphs
from tests.fl.operations import assert_can_be_captured, of_every_step
from tests.fl.toy import VGG, same_bits
from tests.fl.training.cohorts import WIDE, assert_close, cross_entropies, inputs, recipe_for
from tests.pretended_gpu import pretended_gpus

CNN = ClassifierConfig(model="cnn", lr=0.05, **WIDE)
TRAININGS = {
    "sgd": CNN,
    "adam": replace(CNN, optimizer="adam", lr=2e-3),
    "proximal": replace(CNN, proximal=0.3),
    "patience": replace(CNN, lr=0.5, epochs=12, patience=1),
    "batch norm": replace(CNN, model="convnet"),
}

SIDE_BY_SIDE = {
    **TRAININGS,
    "dropout, Adam": replace(VGG, optimizer="adam", lr=2e-3),
    "not replayed": replace(VGG, schedule="cosine"),
}
DIFFERENT = ("proximal", "patience", "batch norm", "dropout, Adam", "not replayed")
SIZES = (2, 7, 16, 17, 50)


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but that no step is captured: they are too few."""
    monkeypatch.setattr(captured, "can_capture", lambda device: True)
    monkeypatch.setattr(captured, "WORTH_IT", 10**6)


def by_itself(training: Training, size: int = 50, round: int = 1) -> TaskOutput:
    own = replace(inputs(training, size, 3), round=round)
    return together([own])[0]


def together(cohort: Sequence[TaskInput]) -> list[TaskOutput]:
    return captured.train(cohort, [recipe_for(own) for own in cohort])


def cohort_of(training: Training, sizes: Sequence[int] = SIZES) -> list[TaskInput]:
    return [inputs(training, size, k) for k, size in enumerate(sizes)]


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


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("name", DIFFERENT)
def test_no_clients_bits_depend_on_who_is_beside_it(name: str) -> None:
    cohort = cohort_of(SIDE_BY_SIDE[name])
    stream = torch.get_rng_state()
    everyone, backwards = together(cohort), together(cohort[::-1])[::-1]
    assert torch.equal(torch.get_rng_state(), stream)
    for own, *others in zip(cohort, everyone, backwards, strict=True):
        alone = together([own])[0]
        for other in others:
            assert same_bits(other.tensors, alone.tensors)
            assert (other.stats, other.losses) == (alone.stats, alone.losses)
    if name == "patience":
        assert len({output.stats["epochs"] for output in everyone}) > 1


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("name", DIFFERENT)
def test_a_replayed_step_has_the_bits_of_one_that_is_run(name: str) -> None:
    cohort = cohort_of(replace(SIDE_BY_SIDE[name], epochs=6))
    expected = together(cohort)
    with pretended_graphs() as graphs:
        found = together(cohort)
    replays = {"patience": [4, 4], "dropout, Adam": [10, 34, 10], "not replayed": []}
    assert [graph.replays for graph in graphs] == replays.get(name, [4, 16, 4])
    for one, other in zip(found, expected, strict=True):
        assert same_bits(one.tensors, other.tensors)
        assert (one.stats, one.losses) == (other.stats, other.losses)


@pytest.mark.usefixtures("replaying")
def test_who_fails_among_others_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(5))

    def fifth_fails(*given: Any) -> None:
        if next(steps) == 4:
            raise ArithmeticError("in its second step")
        minimise(*given)

    monkeypatch.setattr(captured, "minimise", fifth_fails)
    with pytest.raises(ArithmeticError, match="in its second step"):
        together(cohort_of(VGG, (7, 9, 16)))


@pytest.mark.usefixtures("replaying")
def test_what_a_client_took_is_free_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when Python next looks for circles: a graph holds a card's memory."""
    made: list[weakref.ref[Any]] = []

    class Seen(DeviceSteps):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.extend([weakref.ref(self), weakref.ref(self._full_step)])

    monkeypatch.setattr(captured, "DeviceSteps", Seen)
    gc.disable()
    try:
        together(cohort_of(VGG, (7, 9)))
        assert [own() for own in made] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.usefixtures("replaying")
def test_each_client_works_on_a_stream_of_its_own_a_step_in_turn() -> None:
    """It waits for the client's data, and is waited for. The GPU is pretended: no two streams
    work at the same time."""
    cohort = cohort_of(VGG, (7, 16, 24))  # 1, 2 and 3 steps an epoch
    expected = together(cohort)
    told, current = list[Any](), list["Stream"]()

    class Stream(AbstractContextManager["Stream"]):
        def wait_stream(self, other: object) -> None:
            told.append((self, other))

        def __enter__(self) -> "Stream":
            current.append(self)
            return self

        def __exit__(self, *_: object) -> None:
            current.remove(self)

    def minimise(*given: Any) -> None:
        told.append(current[-1])
        as_it_is(*given)

    as_it_is, main = captured.minimise, Stream()
    captured._stream.cache_clear()
    with pretended_gpus(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured, "can_capture", lambda device: True)
        patch.setattr(captured, "minimise", minimise)
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "stream", lambda stream: stream)
        patch.setattr(torch.cuda, "current_stream", lambda: main)
        found = together([replace(own, device=torch.device("cuda")) for own in cohort])
        uploads = [{n: t.cpu() for n, t in output.tensors.items()} for output in found]
    captured._stream.cache_clear()
    a, b, c = own = [stream for stream, _ in told[:3]]
    assert len({*own, main}) == 4
    assert told[:3] == [(stream, main) for stream in own]
    assert told[3:-3] == [a, b, c, a, b, c, b, c, b, c, c, c]
    assert told[-3:] == [(main, stream) for stream in own]
    for upload, output in zip(uploads, expected, strict=True):
        assert same_bits(upload, output.tensors)


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
        assert list(steps.train(batches, common=epoch)) == [0, 1, 2]
        assert steps.losses.tolist() == [rows.sum().item() for rows in batches]
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
def test_a_gpu_replays_side_by_side_what_the_cpu_does_step_by_step(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = replace(training, epochs=12)
    cohort = cohort_of(long, (17, 33, 50, 64, 128))
    on_gpu = [replace(own, device=torch.device("cuda")) for own in cohort]
    alone = [together([own])[0] for own in on_gpu]
    for one, other in zip(alone, together(on_gpu), strict=True):
        assert same_bits(one.tensors, other.tensors)
        assert one.losses == other.losses
    monkeypatch.setattr(captured, "can_capture", lambda device: True)
    monkeypatch.setattr(captured, "WORTH_IT", 10**6)
    for one, other in zip(alone, together(cohort), strict=True):
        assert_close(one, other)
