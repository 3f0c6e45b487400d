"""FENS (Allouah et al., NeurIPS 2024): one round of classifiers, then a model of their logits.

In the first round clients upload classifiers, which form an ensemble. In the second each is sent
all of them, and asks them about samples that it did not train on. From then on clients and server
train a small aggregator of the logits by FedAdam, and send nothing else. It begins as the mean of
the logits, which is what a run of one round gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.bounds import AtLeast, AtMost, Count, Positive, Settings
from fl.clients import Clients
from fl.exchange import check_forms, load_prefixed, prefixed
from fl.federation import RunSpec, TaskInput, TaskOutput, Update
from fl.fusion.aggregation import average_into
from fl.fusion.server import Server
from fl.methods import fedopt
from fl.methods.fedopt import Decay, FedAdamConfig
from fl.methods.method import Assignment, Choice, Distribution, LogUniform, Method, Spaces
from fl.methods.prototypes import LOCAL, PrototypesConfig
from fl.methods.prototypes import assign as assign_prototypes
from fl.methods.uploads import untrained_classifier
from fl.models.ensemble import Aggregator, Ensemble
from fl.receiving import check_reach
from fl.rounds import Rounds
from fl.seeding import seeded
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig, held_out_rows, plain, starting_classifier
from fl.training.losses import logits_of


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
    config, shard = inputs.record(LocalFENS), inputs.shard
    if config.validation:
        shard = shard.take(held_out_rows(inputs, config)[0])
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
    config = inputs.record(LocalFENS)
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
    check_forms(expected, update.tensors, "aggregator", update.sender)
    check_reach(update, "aggregator", dict.fromkeys(expected, 0.0))


@dataclass(frozen=True, kw_only=True)
class FENSConfig(PrototypesConfig):
    """FENS's settings: those of its clients, and of the aggregator."""

    classifier: ClassifierConfig = ClassifierConfig(validation=0.1)
    """A classifier's training. The aggregator learns from the samples that ``validation`` holds out
    (the released script: a tenth), or from all where that is 0."""
    aggregator: AggregatorConfig = AggregatorConfig()


def assign(config: FENSConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """As :func:`fl.methods.prototypes.assign`; each client also knows the others' architectures."""
    assigned = assign_prototypes(config, num_clients, run_spec)
    own = [plain(client.training) for client in assigned]
    peers = tuple((training.model, training.width) for training in own)
    knowing = {t: LocalFENS(**vars(t), peers=peers, aggregator=config.aggregator) for t in set(own)}
    return [replace(client, training=knowing[t]) for client, t in zip(assigned, own, strict=True)]


def run(clients: Clients, server: Server, config: FENSConfig, *, rounds: Rounds) -> Outcome:
    """Both phases; ``start`` is the mean of untrained classifiers."""
    first = clients.members[0].training
    assert isinstance(first, LocalFENS)
    aggregator = first.new_aggregator(server.run_spec)
    members = [untrained_classifier(client.training, server) for client in clients.members]
    model = Ensemble(members, aggregator).to(server.device).eval().requires_grad_(False)
    weights = dict(aggregator.named_parameters())
    memory = {f"{moment}.{n}": torch.zeros_like(t) for n, t in weights.items() for moment in "mv"}
    for number in rounds.play(clients, server, model, memory):
        if number == 1:
            gather(model, aggregator, clients.train())
            continue
        if number == 2:
            everyone = members_sent(model, aggregator)
            clients.map(ask_members, broadcast=everyone, remember=True, goes_to="client")
        updates = clients.map(
            train_aggregator,
            broadcast=prefixed("aggregator", aggregator),
            check=partial(check_aggregator, aggregator.state_dict()),
        )
        with server.events.phase("fusion"):
            step(aggregator, updates, memory, config.aggregator)
    return rounds.outcome(model)


def gather(model: Ensemble, aggregator: Aggregator, updates: Sequence[Update]) -> None:
    """Makes the ensemble of what came; who sent nothing has no weight."""
    aggregator.weights.zero_()
    for update in updates:
        k, sender = update.client.id, update.sender
        load_prefixed(model.members[k], update.tensors, "classifier", sender)
        aggregator.weights[k] = 1 / len(updates)


def members_sent(model: Ensemble, aggregator: Aggregator) -> dict[str, Tensor]:
    """The members that there are, ``member.K.*``."""
    there = aggregator.weights.nonzero().flatten().tolist()
    return {n: t for k in there for n, t in prefixed(f"member.{k}", model.members[k]).items()}


def step(
    aggregator: Aggregator,
    updates: Sequence[Update],
    memory: dict[str, Tensor],
    config: AggregatorConfig,
) -> None:
    """FedAdam's step to the clients' mean by n_k / n; its moments begin at 0."""
    before = {name: w.detach().clone() for name, w in aggregator.named_parameters()}
    sent = [{n.removeprefix("aggregator."): t for n, t in u.tensors.items()} for u in updates]
    average_into(aggregator, sent, [update.client.num_samples for update in updates])
    names = ("server_lr", "beta1", "beta2", "adaptivity")
    adam = FedAdamConfig(**{name: getattr(config, name) for name in names})
    for name, w in aggregator.named_parameters():
        fedopt.step(w, before[name], memory[f"m.{name}"], memory[f"v.{name}"], adam)


SERVER: dict[str, Distribution] = {
    "aggregator.hidden": Choice((0, 2, 4)),
    "aggregator.server_lr": LogUniform(1e-3, 0.1),
}
METHOD = Method(
    name="fens",
    config=FENSConfig,
    assign=assign,
    run=run,
    one_shot=False,
    spaces=Spaces(server=SERVER, local=LOCAL),
)
