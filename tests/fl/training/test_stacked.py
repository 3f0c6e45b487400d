"""Many clients as one computation: the same training, whoever is in the cohort."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.inputs import Inputs
from fl.models.common import Built
from fl.models.registry import register_model
from fl.training import stacked
from fl.training.generator import GeneratorConfig
from fl.training.recipe import Recipe
from tests.fl.toy import CLASSIFIER, GENERATOR, VGG, same_bits
from tests.fl.training.cohorts import (
    DIFFERENT,
    SIZES,
    STACKABLE,
    WIDE,
    Losses,
    Own,
    assert_close,
    cross_entropies,
    inputs,
    recipe_for,
    recipe_with,
    rounded_alike,
    together,
)
from tests.fl.training.plain import train_plainly
from tests.registries import registries_restored


@pytest.mark.parametrize("kind", STACKABLE)
def test_a_cohort_trains_as_its_clients_do_one_by_one(kind: str) -> None:
    """After several epochs, with shards of very different sizes."""
    _, training = STACKABLE[kind]
    with rounded_alike(kind) as run_spec:
        cohort = [inputs(training, size, k, run_spec) for k, size in enumerate(SIZES)]
        assert stacked.conflict(recipe_for(cohort[1])) is None
        for ours, own in zip(together(cohort), cohort, strict=True):
            assert_close(ours, train_plainly(own, recipe_for(own)))


def test_each_client_of_a_cohort_stops_when_its_own_loss_no_longer_falls() -> None:
    """At a rate at which losses jump, so that some stop early and at different epochs."""
    how = {**WIDE, "epochs": 12, "batch_size": 64}
    training = GeneratorConfig(latent=4, lr=0.05, patience=1, **how)
    cohort = [inputs(training, size, k) for k, size in enumerate((1, 7, 64, 65, 200))]
    ours, own = together(cohort), [train_plainly(i, recipe_for(i)) for i in cohort]
    stopped = [output.stats["epochs"] for output in own]
    assert len(set(stopped)) > 2
    assert min(stopped) < 12
    assert [output.stats["epochs"] for output in ours] == stopped
    for one, client_input in zip(ours, cohort, strict=True):
        assert same_bits(one.tensors, together([client_input])[0].tensors)


@pytest.mark.parametrize("kind", DIFFERENT)
def test_company_and_its_number_leave_every_bit_as_it_is(kind: str) -> None:
    run_spec, training = STACKABLE[kind]
    cohort = [inputs(training, size, k, run_spec) for k, size in enumerate(SIZES)]
    everyone = together(cohort)
    backwards = together(cohort[::-1])[::-1]
    for k, own in enumerate(cohort):
        (alone,) = together([own])
        for other in (everyone[k], backwards[k]):
            assert same_bits(alone.tensors, other.tensors)
            assert alone.stats == other.stats
            assert alone.losses == other.losses
            assert len(alone.losses) == alone.stats["epochs"]


def test_threads_do_not_tell_apart_who_has_company() -> None:
    training = replace(GENERATOR, batch_size=64)
    cohort = [inputs(training, size, k) for k, size in enumerate((7, 65))]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for own, ours in zip(cohort, together(cohort), strict=True):
            assert same_bits(together([own])[0].tensors, ours.tensors)
    finally:
        torch.set_num_threads(before)


def test_global_random_state_is_left_as_it_was() -> None:
    before = torch.random.get_rng_state()
    stacked.conflict(recipe_for(inputs(GENERATOR, 9, 0)))
    together([inputs(GENERATOR, 9, 0), inputs(GENERATOR, 5, 1)])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_is_refused_with_the_layers_name() -> None:
    reason = stacked.conflict(recipe_for(inputs(VGG, 9, 0)))
    assert reason == "classifier.3 is a Dropout, which draws from one stream for all"


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(6), nn.BatchNorm1d(6), nn.BatchNorm1d(6, affine=False)], ids=str
)
def test_a_strangers_model_needs_nothing_written_for_cohorts(norm: nn.Module) -> None:
    """Batch normalisation too: each client's rows have their own statistics.

    No batch is of two rows, whose variance may be so small that rounding is all there is.
    """
    torch.manual_seed(0)
    recipe = recipe_with(Own(norm))
    cohort = [inputs(CLASSIFIER, size, k) for k, size in enumerate((12, 4, 36))]
    assert stacked.conflict(recipe(cohort[0])) is None
    outputs = stacked.train([recipe(own) for own in cohort])
    for ours, own in zip(outputs, cohort, strict=True):
        assert_close(ours, train_plainly(own, recipe(own)))


@pytest.mark.parametrize("kind", [torch.bool, torch.complex64, torch.int64])
def test_a_buffer_may_be_of_any_type(kind: torch.dtype) -> None:
    model = Own(nn.Identity())
    model.register_buffer("mask", torch.tensor([True, False]).to(kind))
    assert stacked.conflict(recipe_with(model)(inputs(CLASSIFIER, 9, 0))) is None


class Mixes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(28 * 28, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layer(images.flatten(1))
        return x - x.mean(0)


class Noisy(Mixes):
    def forward(self, images: Tensor) -> Tensor:
        return F.dropout(self.layer(images.flatten(1)), 0.5, self.training)


@pytest.mark.parametrize(
    ("model", "losses", "reason"),
    [
        (Mixes(), None, "a sample's loss depends on the other samples of its batch"),
        (Noisy(), None, "a sample's loss depends on the other samples of its batch"),
        (
            Own(nn.Identity()),
            lambda m, b: cross_entropies(m, b).mean(),
            "its losses have the shape (), not one for each sample",
        ),
    ],
    ids=["mixes", "noisy", "reduced"],
)
def test_samples_that_influence_each_other_are_found_out(
    model: nn.Module, losses: Losses | None, reason: str
) -> None:
    recipe = recipe_with(model, losses)
    assert stacked.conflict(recipe(inputs(CLASSIFIER, 9, 0))) == reason


class SameOutputs(nn.Module):
    """A layer of which a cohort's model would use the first client's: listed, not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(28 * 28, 3)
        self.listed = [self.layer]

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.listed[0](images.flatten(1))
        return logits


class OwnGradient(torch.autograd.Function):
    """Gradients that depend on the number of rows, of outputs that do not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * len(gradient)


class SameForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(28 * 28, 3)

    def forward(self, images: Tensor) -> Tensor:
        return OwnGradient.apply(self.layer(images.flatten(1)))


class Twice(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(28 * 28, 28 * 28)
        self.second, self.head = self.first, nn.Linear(28 * 28, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.second(self.first(images.flatten(1))).relu())


def _probe(model: nn.Module) -> Recipe:
    cohort_client = inputs(CLASSIFIER, 9, 0)
    model.built_as = Built("mine", Inputs((1, 28, 28)), 3, 1.0)  # type: ignore[assignment]
    return replace(recipe_for(cohort_client), model=model, trained=None)


def test_models_whose_outputs_alone_agree_do_not_train_as_one() -> None:
    """A cohort's model of these has another's weights or other gradients."""
    images = _probe(SameForward())
    assert stacked.conflict(images) == "its gradients are others together than alone"
    assert stacked.conflict(_probe(SameOutputs())) is not None


def test_a_layer_under_two_names_is_each_clients_own() -> None:
    assert stacked.conflict(_probe(Twice())) is None


class Branching(nn.Module):
    """Takes samples of 0 to 255 and of 0 to 1 alike, as its own code decides."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 1:
            x = x / 255
        logits: Tensor = self.layer(x.flatten(1))
        return logits


class Straight(Branching):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x.flatten(1))
        return logits


def test_a_model_that_decides_by_values_trains_alone() -> None:
    found = []
    for make in (Branching, Straight):
        with registries_restored():
            register_model("users", make)
            training = replace(CLASSIFIER, model="users", width=1.0)
            found.append(stacked.conflict(recipe_for(inputs(training, 20, 0))))
    assert found == ["its forward may decide by its samples' values", None]
