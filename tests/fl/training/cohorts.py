"""Cohorts of clients with shards of very different sizes, and models that could train in one."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.federation import Batch, RunSpec, TaskInput, TaskOutput, Training
from fl.training import stacked
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from fl.training.optimizers import SGD
from fl.training.recipe import Recipe
from fl.training.task import RecipeFunction, RecipeTraining
from tests.fl.toy import PROBLEM, shard, task_input

Losses = Callable[[nn.Module, Batch], Tensor]
EMNIST = RunSpec.of_images((1, 28, 28), num_classes=12, seed=0)
SVHN = RunSpec.of_images((3, 16, 16), num_classes=3, seed=0)
SIZES = (1, 7, 16, 17, 50)
WIDE = {"width": 0.3, "epochs": 3, "batch_size": 16}
STACKABLE = {
    "cvae-mlp": (PROBLEM, GeneratorConfig(latent=4, **WIDE)),
    "cvae-mlp-sum": (PROBLEM, GeneratorConfig(latent=4, loss_reduction="sum", **WIDE)),
    "cvae-whole": (PROBLEM, GeneratorConfig(latent=4, upload="cvae", **WIDE)),
    "cvae-conv": (EMNIST, GeneratorConfig(latent=4, **WIDE)),
    "cvae-color": (SVHN, GeneratorConfig(latent=4, **WIDE)),
    "cnn-sgd": (PROBLEM, ClassifierConfig(model="cnn", lr=0.05, **WIDE)),
    "cnn-plain-sgd": (PROBLEM, ClassifierConfig(model="cnn", momentum=0, **WIDE)),
    "cnn-proximal": (PROBLEM, ClassifierConfig(model="cnn", lr=0.05, proximal=0.3, **WIDE)),
    "cnn-adam": (EMNIST, ClassifierConfig(model="cnn", optimizer="adam", lr=2e-3, **WIDE)),
}

DIFFERENT = ("cvae-mlp-sum", "cvae-color", "cnn-plain-sgd", "cnn-proximal", "cnn-adam")
"""Of these, one of each model, loss and optimiser."""


@contextmanager
def rounded_alike(kind: str) -> Iterator[RunSpec]:
    """Inside, a CNN by Adam computes with 64 bits: Adam makes whole steps of a gradient that is
    rounding alone, so in 32 two ways to add it end far apart, on some CPUs.

    Yields the problem. Its seed is its own there, as starting models are kept by it.
    """
    run_spec, _ = STACKABLE[kind]
    usual = torch.get_default_dtype()
    if kind == "cnn-adam":
        torch.set_default_dtype(torch.float64)
        run_spec = replace(run_spec, seed=64)
    try:
        yield run_spec
    finally:
        torch.set_default_dtype(usual)


def recipe_for(inputs: TaskInput) -> Recipe:
    """The recipe of the client's own training."""
    training = inputs.client.training
    assert isinstance(training, RecipeTraining)
    return training.recipe(inputs)


def inputs(training: Training, size: int, id: int, run_spec: RunSpec = PROBLEM) -> TaskInput:
    """A client with so many noisy images, the same for the same id."""
    images = torch.rand(size, *run_spec.image_shape, generator=torch.Generator().manual_seed(id))
    data = replace(shard(1, 0, 0), samples=images, labels=torch.arange(size) % 3)
    data = replace(data, num_classes=run_spec.num_classes)
    return task_input(training, data, id=id, run_spec=run_spec)


def together(cohort: Sequence[TaskInput]) -> list[TaskOutput]:
    """What each client uploads when all train as one."""
    return stacked.train([recipe_for(i) for i in cohort])


def assert_close(one: TaskOutput, other: TaskOutput) -> None:
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(tensor, other.tensors[name], rtol=1e-3, atol=1e-4)
    assert one.stats["train_loss"] == pytest.approx(other.stats["train_loss"], rel=1e-4)


class Own(nn.Module):
    """A model written by someone who never heard of cohorts, with weights at every level."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 6, bias=False))
        self.norm = norm
        self.head = Head()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(F.gelu(self.norm(self.scale(images))) ** 2)


class Head(nn.Module):
    """Has weights and a child."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 18).view(6, 3))
        self.last = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x @ self.weight)


def recipe_with(model: nn.Module, losses: Losses | None = None) -> RecipeFunction:
    """Three epochs of a copy of the model, on the client's samples in their order."""

    def recipe(own: TaskInput) -> Recipe:
        trained = copy.deepcopy(model).train()

        def epoch() -> Iterator[Batch]:
            for part in torch.arange(len(own.shard)).split(8):
                yield {"x": own.shard.images[part], "y": own.shard.labels[part]}

        return Recipe(
            model=trained,
            losses=losses or cross_entropies,
            optimizer=SGD(0.05, 0.9),
            epochs=(epoch() for _ in range(3)),
            upload=lambda: dict(trained.state_dict()),
        )

    return recipe


def cross_entropies(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
