"""A client that trains by a formula learns what it learns by autograd, whoever trains with it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fl.federation import Batch, TaskOutput
from fl.training import dense_cvae
from fl.training.dense_cvae import flattened
from fl.training.generator import GeneratorConfig
from fl.training.optimizers import SGD, Adam
from fl.training.recipe import Recipe, one_by_one
from fl.training.task import train_many
from tests.fl.toy import same_bits
from tests.fl.training.cohorts import SIZES, WIDE, assert_close, inputs, recipe_for

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
