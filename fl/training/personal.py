"""Local training of a client that keeps a model of its own, from round to round."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import nn

from fl.bounds import Count, OneOf, Positive, Width
from fl.exchange import load_prefixed, prefixed
from fl.federation import Task, TaskInput
from fl.models import CLASSIFIERS
from fl.training.classifier import (
    Architecture,
    ClassifierConfig,
    classifier_recipe,
    plain,
    starting_classifier,
)
from fl.training.recipe import Recipe
from fl.training.task import task_of


class OwnRecipe:
    """What a classifier's record adds if its clients train by a recipe of its own."""

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return train_by_own_recipe

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains the client's own model, with what the server sent in place of its own layers."""
        assert isinstance(self, ClassifierConfig)
        return classifier_recipe(inputs, self, personal_model(inputs, self))


class AfterFedAvg(OwnRecipe):
    """The same if they train as FedAvg's in the first round, when there is nothing to remember and
    nothing is sent."""

    @property
    def first_round(self) -> ClassifierConfig:
        """FedAvg's record: one stored model of the first round serves all such methods."""
        assert isinstance(self, ClassifierConfig)
        return plain(self)


@task_of
def train_by_own_recipe(inputs: TaskInput) -> Recipe:
    """Trains by the recipe of the client's record."""
    config = inputs.client.training
    assert isinstance(config, OwnRecipe)
    return config.recipe(inputs)


@dataclass(frozen=True, kw_only=True)
class PersonalTraining(AfterFedAvg, ClassifierConfig):
    """A classifier's local training that goes on from the client's own model.

    The defaults are FedD2S's (Section IV-A), but for the batch: the paper has 128.
    """

    model: Annotated[str, OneOf(CLASSIFIERS)] = "m1"
    """Classifier architecture; m1 and m2 are FedD2S's, all are in docs/methods/models.md."""
    width: Width = 1.0
    """Factor on channels and hidden units; 1 is the paper's size."""
    epochs: Count = 4
    """Local epochs of a round."""
    lr: Positive = 0.01
    """Learning rate."""
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    """Local optimiser, new in every round; sgd uses the momentum below."""
    batch_size: Count = 32
    """Samples per step (FedD2S's paper: 128)."""

    def check_further(self) -> None:
        """Refuses a schedule: some of these methods train in several stages a round."""
        self.refuse_pace("a client with a model of its own")

    def reach(self, num_samples: int) -> float:
        """Any way: methods have such clients train for longer than ``epochs``."""
        return math.inf


def personal_model(inputs: TaskInput, config: Architecture) -> nn.Module:
    """The weights ``classifier.*`` that the server sent; the others as the client remembers them,
    or, if it has not trained yet, as they were drawn from the seed. On the client's device.

    Raises:
        ValueError: a weight that was sent or remembered is of another model.
    """
    model = starting_classifier(config, inputs.run_spec)
    received = {**inputs.remembered, **inputs.broadcast, **inputs.payload}
    if any(name.startswith("classifier.") for name in received):
        sender = "the server, or the client's memory,"
        load_prefixed(model, {**prefixed("classifier", model), **received}, "classifier", sender)
    return model.to(inputs.device)


def last_model(inputs: TaskInput, config: Architecture) -> nn.Module | None:
    """The whole model that the client remembers, on its device; None if it has not trained yet.

    Raises:
        ValueError: the memory is of another model.
    """
    if not inputs.remembered:
        return None
    model = starting_classifier(config, inputs.run_spec)
    load_prefixed(model, inputs.remembered, "classifier", sender="the client's memory")
    return model.to(inputs.device)


def own_model(inputs: TaskInput) -> nn.Module:
    """The model by which a client is scored: see :func:`personal_model`."""
    config = inputs.client.training
    assert isinstance(config, ClassifierConfig)
    return personal_model(inputs, config)
