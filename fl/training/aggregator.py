"""A client's part in training a model of all clients' logits (FENS)."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.bounds import AtLeast, AtMost, Count, Positive, Settings, Within
from fl.exchange import check_forms, load_prefixed, prefixed
from fl.federation import RunSpec, TaskInput, TaskOutput, Update
from fl.models.ensemble import Aggregator
from fl.plausible import check_reach
from fl.seeding import seeded
from fl.training.classifier import ClassifierConfig, held_out_rows, plain, starting_classifier
from fl.training.losses import logits_of

Decay = Annotated[float, Within(0, 1, "[)")]


@dataclass(frozen=True, kw_only=True)
class AggregatorConfig(Settings):
    """The model of the logits, and FedAdam's settings, by which it is trained. The defaults are the
    released script's, but for the server's rate."""

    hidden: Annotated[int, AtLeast(0), AtMost(1000)] = 2
    """Hidden units for each client; 0: a weight for each client and class in place of a network."""
    steps: Count = 1
    """A client's steps of SGD in a round."""
    batch_size: Count = 128
    """Samples of a step."""
    lr: Positive = 1.0
    """A client's rate."""
    server_lr: Positive = 3e-3
    """The server's rate (the released script: 0.001, for 500 rounds)."""
    beta1: Decay = 0.9
    """Decay of the mean of moves."""
    beta2: Decay = 0.99
    """Decay of the mean of their squares."""
    adaptivity: Positive = 1e-3
    """tau, which bounds the step of a weight that hardly moves."""


@dataclass(frozen=True, kw_only=True)
class LocalFENS(ClassifierConfig):
    """What a FENS client knows from the start: its own training, all clients' architectures, and
    how the aggregator is trained."""

    peers: tuple[tuple[str, float], ...]
    """Model and width of each client, by id."""
    aggregator: AggregatorConfig

    @property
    def first_round(self) -> ClassifierConfig:
        """FedAvg's record, whose uploads others can use."""
        return plain(self)

    def new_aggregator(self, run_spec: RunSpec) -> Aggregator:
        """The aggregator as it is at first."""
        with seeded(run_spec.seed, "start/aggregator"):
            return Aggregator(len(self.peers), run_spec.num_classes, self.aggregator.hidden)


@torch.no_grad()
def ask_members(inputs: TaskInput) -> TaskOutput:
    """What the client remembers: the ``logits`` of all members that it was sent, ``member.K.*``, of
    its held out samples, or of all if it holds out none, (n, members, classes), 0 of a member that
    is missing; and the samples' ``labels``."""
    config, shard = _config(inputs), inputs.shard
    if config.validation:
        shard = shard.take(held_out_rows(replace(inputs, round=1), config)[0])
    images = shard.images
    logits = torch.zeros(len(images), len(config.peers), inputs.run_spec.num_classes)
    for k, (model, width) in enumerate(config.peers):
        if any(name.startswith(f"member.{k}.") for name in inputs.broadcast):
            member = starting_classifier(plain(config, model=model, width=width), inputs.run_spec)
            load_prefixed(member, inputs.broadcast, f"member.{k}", sender="the server")
            logits[:, k] = logits_of(member.to(inputs.device), images, config.batch_size).cpu()
    return TaskOutput(tensors={"logits": logits, "labels": shard.labels})


def train_aggregator(inputs: TaskInput) -> TaskOutput:
    """Steps of SGD from the aggregator that the server sent, by CE of the remembered logits."""
    config = _config(inputs)
    how, aggregator = config.aggregator, config.new_aggregator(inputs.run_spec)
    load_prefixed(aggregator, inputs.broadcast, "aggregator", sender="the server")
    logits, labels = inputs.remembered["logits"], inputs.remembered["labels"]
    parameters, order = list(aggregator.parameters()), inputs.stream("aggregator/order")
    loss = torch.zeros(())
    for _ in range(how.steps):
        rows = torch.randperm(len(labels), generator=order)[: how.batch_size]
        loss = F.cross_entropy(aggregator(logits[rows].transpose(0, 1)), labels[rows])
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.data.sub_(how.lr * gradient)
    return TaskOutput(tensors=prefixed("aggregator", aggregator), stats={"train_loss": loss.item()})


def check_aggregator(expected: dict[str, Tensor], update: Update, run_spec: RunSpec) -> None:
    """Raises `ValueError` for what cannot have been made of the aggregator that was sent."""
    check_forms(expected, update.tensors, "aggregator", f"client {update.client.id}")
    check_reach(update, "aggregator", dict.fromkeys(expected, 0.0))


def _config(inputs: TaskInput) -> LocalFENS:
    config = inputs.client.training
    assert isinstance(config, LocalFENS)
    return config
