"""Eq. 3's gradient as a formula: of the CVAE, and in whole trainings."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from fl.federation import Batch
from fl.models.architectures.cvaes import CVAE, LOGVAR_BOUND, Decoder, DenseEncoder, elbo_losses
from fl.models.registry import build_generator
from fl.seeding import seeded
from fl.training.dense_cvae import flattened, gradient_of, parameters_of
from fl.training.generator import GeneratorConfig
from fl.training.recipe import one_by_one
from fl.training.task import train_many
from tests.fl.toy import same_bits
from tests.fl.training.cohorts import SIZES, WIDE, assert_close, inputs, recipe_for

LATENT, CLASSES = 4, 3


def model_and_batch(size: int = 9, side: int = 28) -> tuple[CVAE, Batch]:
    """CVAE-small's layers and one more in the decoder, for images of any side."""
    draws = torch.Generator().manual_seed(size)
    pixels, hidden = side**2, 16
    with seeded(0, "test"):
        last = [nn.Linear(hidden, pixels), nn.Unflatten(1, (1, side, side))]
        between = [nn.Linear(LATENT + CLASSES, 8), nn.ReLU(), nn.Linear(8, hidden), nn.ReLU()]
        decoder = Decoder(nn.Sequential(*between, *last), LATENT, CLASSES)
        encoder = DenseEncoder(pixels, CLASSES, hidden, LATENT)
    batch = {
        "images": torch.rand(size, 1, side, side, generator=draws, dtype=torch.float64),
        "labels": torch.arange(size) % CLASSES,
        "noise": torch.randn(size, LATENT, generator=draws, dtype=torch.float64),
    }
    return CVAE(encoder, decoder, (1, side, side)).double(), batch


def by_autograd(model: CVAE, batch: Batch, reduction: Literal["mean", "sum"]) -> list[Tensor]:
    """Losses, and the gradient of each parameter."""
    images = batch["images"]
    logits, mu, logvar = model(images, batch["labels"], batch["noise"])
    losses = elbo_losses(logits, images, mu, logvar)
    loss = losses.mean() if reduction == "mean" else losses.sum()
    return [losses.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def by_formula(model: CVAE, batch: Batch, reduction: Literal["mean", "sum"]) -> list[Tensor]:
    gradient = gradient_of(model, reduction)
    assert gradient is not None
    losses = gradient(flattened(parameters_of(model)))(batch)
    return [losses, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("size", "side"), [(1, 28), (9, 28), (64, 8), (5, 11)])
def test_losses_and_gradients_are_autograds(
    reduction: Literal["mean", "sum"], size: int, side: int
) -> None:
    model, batch = model_and_batch(size, side)
    expected = by_autograd(model, batch, reduction)
    torch.testing.assert_close(by_formula(model, batch, reduction), expected)


def test_so_they_are_where_a_pixel_is_certain_and_a_variance_is_at_its_bound() -> None:
    model, batch = model_and_batch()
    with torch.no_grad():
        model.encoder.logvar.weight.mul_(1e3)
        model.decoder.layers[-2].weight.mul_(1e3)  # type: ignore[index, union-attr, operator]
    logits, _, logvar = model(batch["images"], batch["labels"], batch["noise"])
    assert logits.abs().max() > 40  # where a sigmoid is 1 in float64 too
    assert 0 < (logvar.abs() == LOGVAR_BOUND).sum() < logvar.numel()
    expected = by_autograd(model, batch, "mean")
    torch.testing.assert_close(by_formula(model, batch, "mean"), expected)


def test_stacked_models_have_the_gradients_of_each() -> None:
    """Each with its own weights, batch and shares."""
    pairs = [model_and_batch(size) for size in (9, 9, 9)]
    draws = torch.Generator().manual_seed(0)
    for model, batch in pairs:
        for tensor in (*model.parameters(), batch["noise"]):
            tensor.data.add_(torch.randn(tensor.shape, generator=draws), alpha=0.1)
    expected = [by_autograd(*pair, "mean") for pair in pairs]
    whole = {name: torch.stack([batch[name] for _, batch in pairs]) for name in pairs[0][1]}
    stacks = zip(*(parameters_of(model) for model, _ in pairs), strict=True)
    parameters = [torch.stack([p.detach() for p in own]) for own in stacks]
    gradient = gradient_of(pairs[0][0], "mean")
    assert gradient is not None
    shares = torch.full((3, 9), 1 / 9, dtype=torch.float64)
    losses = gradient(flattened(parameters, stacked=True))(whole, shares)
    for k, (model, _) in enumerate(pairs):
        order = [id(p) for p in parameters_of(model)]
        found = [parameters[order.index(id(p))].grad[k] for p in model.parameters()]  # type: ignore[index]
        torch.testing.assert_close([losses[k], *found], expected[k])


def test_in_float32_the_loss_is_as_exact_as_autograds() -> None:
    model, batch = model_and_batch(64)
    exact = by_autograd(model, batch, "mean")[0]
    single = {n: t.float() if t.is_floating_point() else t for n, t in batch.items()}
    losses = by_formula(model.float(), single, "mean")[0].double()
    torch.testing.assert_close(losses, exact, rtol=1e-6, atol=0)


class OwnLinear(nn.Linear):
    """Might do anything."""


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [nn.ReLU()],
        [nn.Linear(7, 784, bias=False)],
        [nn.Linear(7, 784), nn.Sigmoid()],
        [OwnLinear(7, 784)],
        [nn.Linear(7, 784), nn.BatchNorm1d(784)],
    ],
    ids=str,
)
def test_a_cvae_of_other_layers_has_no_such_formula(layers: list[nn.Module]) -> None:
    model, _ = model_and_batch()
    model.decoder.layers = nn.Sequential(*layers)
    assert gradient_of(model, "mean") is None


def test_a_convolutional_cvae_has_none_either() -> None:
    for shape, classes in (((1, 28, 28), 47), ((3, 16, 16), 3)):
        assert gradient_of(build_generator("cvae-small", shape, classes, latent=4), "mean") is None


TRAININGS = [
    GeneratorConfig(latent=4, **WIDE),
    GeneratorConfig(latent=4, loss_reduction="sum", **WIDE),
    GeneratorConfig(latent=4, upload="cvae", **WIDE),
]


@pytest.mark.parametrize("training", TRAININGS)
def test_a_client_learns_what_it_learns_by_autograd(training: GeneratorConfig) -> None:
    for id, size in enumerate(SIZES):
        own = inputs(training, size, id)
        plain = one_by_one(own, recipe_for(own))
        formula = train_many(training.task, [own])[0]
        assert_close(formula, plain)
        assert formula.losses == pytest.approx(plain.losses, rel=1e-4)


@pytest.mark.parametrize("training", TRAININGS)
def test_an_upload_does_not_depend_on_who_trains_with_the_client(training: GeneratorConfig) -> None:
    cohort = [inputs(training, size, id) for id, size in enumerate(SIZES)]
    together = train_many(training.task, cohort)
    alone = [train_many(training.task, [own])[0] for own in cohort[::-1]][::-1]
    for one, other in zip(together, alone, strict=True):
        assert same_bits(one.tensors, other.tensors)
        assert (one.stats, one.losses) == (other.stats, other.losses)


def test_a_client_stops_when_its_loss_no_longer_falls() -> None:
    own = inputs(replace(TRAININGS[0], patience=1, epochs=12, lr=0.1), 7, 0)
    formula = train_many(own.client.training.task, [own])[0]
    assert formula.stats["epochs"] == one_by_one(own, recipe_for(own)).stats["epochs"] < 12
