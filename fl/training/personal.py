"""Local training of a client that keeps a model of its own, from round to round."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import nn

from fl.bounds import Count, OneOf, Positive, Width
from fl.exchange import Tensors, checked, load_prefixed, prefixed
from fl.federation import TaskInput
from fl.models.registry import CLASSIFIERS
from fl.training.classifier import (
    Architecture,
    ClassifierConfig,
    classifier_recipe,
    plain,
    starting_classifier,
)
from fl.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class AfterFedAvg(ClassifierConfig):
    """A record whose clients train as FedAvg's in the first round, when there is nothing to
    remember and nothing is sent, and by a recipe of their own in all others."""

    @property
    def first_round(self) -> ClassifierConfig:
        """FedAvg's record: one stored model of the first round serves all such methods."""
        return plain(self)

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains the client's own model, with what the server sent in place of its own layers."""
        return classifier_recipe(inputs, self, personal_model(inputs, self))


@dataclass(frozen=True, kw_only=True)
class PersonalTraining(AfterFedAvg):
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
    config = inputs.record(ClassifierConfig)
    return personal_model(inputs, config)


def beside(prefix: str, tensors: Tensors, like: Tensors, sender: str) -> Tensors:
    """``prefix.*`` in a message or memory for each of these parameters, on their device; zeros
    where nothing was sent or is remembered yet.

    Raises:
        ValueError: they are of another model.
    """
    if not tensors:
        return {name: torch.zeros_like(p) for name, p in like.items()}
    found = checked(like, tensors, prefix, sender)
    return {name: tensor.to(like[name].device) for name, tensor in found.items()}
