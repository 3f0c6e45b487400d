"""Eq. 3's gradient as a formula: chains of linear layers, the CVAE, whole trainings."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from fl.federation import Batch, TaskOutput
from fl.models import CVAE, Decoder, build_generator, elbo_losses
from fl.models.architectures.cvaes import DenseEncoder
from fl.models.cvae import LOGVAR_BOUND
from fl.seeding import seeded
from fl.training import dense_cvae
from fl.training.dense_cvae import LinearChain, flattened, gradient_of
from fl.training.generator import GeneratorConfig
from fl.training.optimizers import SGD, Adam
from fl.training.recipe import Recipe, one_by_one
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
    flattened(model)
    gradient = gradient_of(model, reduction)
    assert gradient is not None
    losses = gradient(batch)
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


def test_in_float32_the_loss_is_as_exact_as_autograds() -> None:
    model, batch = model_and_batch(64)
    exact = by_autograd(model, batch, "mean")[0]
    single = {n: t.float() if t.is_floating_point() else t for n, t in batch.items()}
    losses = by_formula(model.float(), single, "mean")[0].double()
    torch.testing.assert_close(losses, exact, rtol=1e-6, atol=0)


def test_a_convolutional_cvae_has_no_such_formula() -> None:
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
def test_an_upload_does_not_depend_on_who_trains_with_the_client(
    training: GeneratorConfig,
) -> None:
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


@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), SGD(0.1), Adam(0.1, weight_decay=0.1)])
def test_any_recipe_may_have_a_formula(optimizer: SGD | Adam) -> None:
    assert_close(line(optimizer, formula=True), line(optimizer, formula=False))


def line(optimizer: SGD | Adam, *, formula: bool) -> TaskOutput:
    """Fits a line by least squares, whose gradient a user would write down."""
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    x = torch.linspace(-1, 1, 8)[:, None]

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch["x"]) - 2 * batch["x"] - 1).square().squeeze(1)

    def gradient(batch: Batch) -> Tensor:
        error = model(batch["x"]) - 2 * batch["x"] - 1
        model.weight.grad.copy_(2 * (error * batch["x"]).mean())  # type: ignore[union-attr]
        model.bias.grad.copy_(2 * error.mean(0))  # type: ignore[union-attr]
        return error.square().squeeze(1)

    recipe = Recipe(
        model=model,
        losses=losses,
        gradient=gradient if formula else None,
        optimizer=optimizer,
        epochs=iter([iter([{"x": x}])] * 5),
        upload=lambda: dict(model.state_dict()),
    )
    if formula:
        return dense_cvae.train(recipe)
    return one_by_one(inputs(TRAININGS[0], 1, 0), recipe)


def test_parameters_and_gradients_are_views_of_one_tensor_each() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    weights = flattened(model)
    assert same_bits(before, dict(model.state_dict()))
    assert weights.numel() == 3 * 2 + 2 + 2 + 1
    assert weights.grad is not None
    weights.data.zero_()
    weights.grad.fill_(7)
    for parameter in model.parameters():
        assert not parameter.any()
        assert parameter.grad is not None
        assert (parameter.grad == 7).all()


CHAINS = {
    "one": [nn.Linear(5, 3)],
    "activated": [nn.Linear(5, 4), nn.ReLU()],
    "deep": [nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6), nn.Linear(6, 6), nn.ReLU()],
    "shaped": [nn.Flatten(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6), nn.Unflatten(1, (2, 3))],
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("rows", [1, 7])
def test_gradients_are_autograds(name: str, rows: int) -> None:
    model = nn.Sequential(*CHAINS[name]).double()
    seen = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True)
    expected = model(seen).flatten(1)
    weighing = torch.randn_like(expected)
    of_all = torch.autograd.grad((expected * weighing).sum(), [seen, *model.parameters()])
    flattened(model)
    chain = LinearChain.of(model.children())
    assert chain is not None
    with torch.no_grad():
        torch.testing.assert_close(chain.forward(seen.detach()), expected)
        of_seen = chain.backward(weighing.clone())
    torch.testing.assert_close([of_seen, *(p.grad for p in model.parameters())], [*of_all])


def test_the_inputs_gradient_is_not_computed_unless_it_is_asked_for() -> None:
    model = nn.Sequential(nn.Linear(5, 3))
    flattened(model)
    chain = LinearChain.of(model.children())
    assert chain is not None
    with torch.no_grad():
        chain.forward(torch.zeros(2, 5))
        assert chain.backward(torch.ones(2, 3), of_inputs=False).shape == (2, 3)
    assert model[0].bias.grad is not None
    assert model[0].bias.grad.tolist() == [2, 2, 2]


class OwnLinear(nn.Linear):
    """Might do anything."""


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [nn.ReLU()],
        [nn.Linear(5, 3, bias=False)],
        [nn.Linear(5, 3), nn.Sigmoid()],
        [OwnLinear(5, 3)],
        [nn.Conv2d(1, 2, 3)],
        [nn.Linear(5, 3), nn.BatchNorm1d(3)],
    ],
    ids=str,
)
def test_other_layers_are_no_chain(layers: list[nn.Module]) -> None:
    assert LinearChain.of(layers) is None
