"""FENS (Allouah et al., NeurIPS 2024): one round of classifiers, then a model of their logits.

In the first round clients upload classifiers, which form an ensemble. In the second each is sent
all of them, and asks them about samples that it did not train on. From then on clients and server
train a small aggregator of the logits by FedAdam, and send nothing else. It begins as the mean of
the logits, which is what a run of one round gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fl.clients import Clients
from fl.exchange import load_prefixed, prefixed
from fl.federation import RunSpec, Update
from fl.fusion.aggregation import average_into
from fl.fusion.server import Server
from fl.methods import fedopt
from fl.methods.fedopt import FedAdamConfig
from fl.methods.method import Assignment, Method
from fl.methods.prototypes import LOCAL, PrototypesConfig
from fl.methods.prototypes import assign as assign_prototypes
from fl.methods.uploads import untrained_classifier
from fl.models.ensemble import Aggregator, Ensemble
from fl.rounds import Rounds
from fl.server import Outcome
from fl.spaces import Choice, Distribution, LogUniform, Spaces
from fl.training.aggregator import (
    AggregatorConfig,
    LocalFENS,
    ask_members,
    check_aggregator,
    train_aggregator,
)
from fl.training.classifier import ClassifierConfig, plain


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
        k, sender = update.client.id, f"client {update.client.id}"
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
