"""A client's recipe: its mean loss, its patience, and training it alone."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fl.federation import Batch, Training
from fl.training.optimizers import SGD
from fl.training.recipe import Recipe, one_by_one
from tests.fl.toy import GENERATOR, VGG
from tests.fl.training.cohorts import assert_close, inputs, recipe_for
from tests.fl.training.plain import train_plainly


def losses_of(model: nn.Module, batch: Batch) -> Tensor:
    """Each sample's distance from the model's bias."""
    assert isinstance(model, nn.Linear)
    return (model.bias - batch["x"]).square()


def recipe(
    epochs: int = 3, sizes: tuple[int, ...] = (2, 1), patience: int | None = None, lr: float = 0.1
) -> Recipe:
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.bias)
    model.weight.requires_grad_(False)
    model.weight.grad = torch.zeros_like(model.weight)

    def epoch() -> Iterator[Batch]:
        yield from ({"x": torch.ones(size)} for size in sizes)

    return Recipe(
        model=model,
        losses=lambda m, batch: losses_of(m, batch) + 0 * m.weight.sum(),
        optimizer=SGD(lr),
        epochs=(epoch() for _ in range(epochs)),
        patience=patience,
        upload=lambda: {"bias": model.bias.detach().clone()},
    )


@pytest.mark.parametrize(
    "training",
    [replace(VGG, epochs=3), replace(VGG, epochs=3, optimizer="adam", lr=2e-3), GENERATOR],
    ids=["sgd", "adam", "generator"],
)
def test_one_by_one_is_the_plain_way(training: Training) -> None:
    """With dropout too, whose masks come from the client's own stream."""
    own = inputs(training, 20, 3)
    assert_close(one_by_one(own, recipe_for(own)), train_plainly(own, recipe_for(own)))
