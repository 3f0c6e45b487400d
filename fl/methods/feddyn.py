"""FedDyn (Acar et al., ICLR 2021): FedAvg with a regulariser that each client corrects.

Client k minimises f_k(w) + alpha <w, g_k> + alpha/2 |w - s|^2 from the weights s that were sent,
and remembers g_k, the sum of its own drifts w_k - s. The server tests the mean of the weights, and
sends that mean plus the mean drift of all clients. Without a drift yet, the first round is
FedProx's.
"""

from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import nn

from fl.bounds import NotNegative
from fl.clients import Clients, trained
from fl.errors import UserError
from fl.exchange import Tensors, check_forms, checked, prefixed
from fl.federation import RunSpec, Task, TaskInput, Training, Update
from fl.methods.averaging import Averaging, trained_parameters
from fl.methods.method import Method
from fl.methods.prototypes import LOCAL, ParticipationConfig, PrototypesConfig, assign
from fl.models.state import state_sent
from fl.rounds import Rounds
from fl.server import Outcome, Server
from fl.spaces import LogUniform, Spaces
from fl.training.classifier import (
    ClassifierConfig,
    classifier_recipe,
    plain,
    received_classifier,
    starting_classifier,
)
from fl.training.recipe import Recipe
from fl.training.task import task_of


@dataclass(frozen=True, kw_only=True)
class LocalFedDyn(ClassifierConfig):
    """Local training of a FedDyn client: a classifier's, regularised."""

    alpha: NotNegative = 0.01
    """Weight of the regulariser (FedAF's paper: 0.01), above 0."""
    adapted: bool = False
    """Whether alpha is multiplied by the mean number of samples over the client's own, as in the
    authors' code."""

    @property
    def first_round(self) -> ClassifierConfig:
        """FedProx's record with mu = alpha, as no client has drifted yet; unless it is adapted."""
        return self if self.adapted else plain(self, proximal=self.alpha)

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return train_dynamically

    def check_further(self) -> None:
        """``alpha`` is above 0 and takes the place of ``proximal``."""
        if self.alpha == 0:
            raise UserError(
                "alpha must be above 0: clients gather drifts whatever it is, so FedDyn without it "
                "is not FedAvg; for that take method fedavg"
            )
        if self.proximal:
            raise UserError("proximal must be 0 in FedDyn: alpha takes its place")


@dataclass(frozen=True, kw_only=True)
class FedDynConfig(ParticipationConfig, PrototypesConfig):
    """FedDyn's settings, beside those of its clients."""

    classifier: LocalFedDyn = LocalFedDyn()


def run(clients: Clients, server: Server, config: FedDynConfig, *, rounds: Rounds) -> Outcome:
    """Algorithm 1; the global model that is tested is the mean, without the mean drift.

    By the mean a of m of the K clients' weights, sum_k (w_k - s) / K = m (a - s) / K.
    """
    frame = Averaging(clients, server, config, rounds)
    model, number = frame.model, Counter(client.training for client in clients.members)
    drifts = {
        f"{i}.{n}": p.detach() * 0
        for i, m in enumerate(model.values())
        for n, p in trained_parameters(m)
    }
    samples = torch.tensor([client.num_samples for client in clients.members]).double()

    def start() -> dict[Training, Tensors]:
        """s: the mean of the weights plus the mean drift of all clients."""
        found = frame.weights()
        for i, (training, average) in enumerate(model.items()):
            for name, a in trained_parameters(average):
                found[training][f"classifier.{name}"] = a.detach() + drifts[f"{i}.{name}"]
        return found

    def check(update: Update, run_spec: RunSpec) -> None:
        trained(update, run_spec)
        check_drift(update, model[clients.members[update.client.id].training])

    for updates in frame.play(
        drifts,
        start=start,
        known={"mean_samples": samples.mean()} if config.classifier.adapted else None,
        remember=True,
        goes_to=lambda client, name: "client" if name.startswith("drift.") else "server",
        check=check,
    ):
        taken = Counter(update.client.training for update in updates)
        for i, (training, average) in enumerate(model.items()):
            for name, a in trained_parameters(average) if taken[training] else []:
                drift = a.detach() - frame.start[training][f"classifier.{name}"]
                drifts[f"{i}.{name}"].add_(drift, alpha=taken[training] / number[training])
    return rounds.outcome(frame.ensemble)


def check_drift(update: Update, model: nn.Module) -> None:
    """Raises `ValueError` unless a client that gathers drifts holds one of these weights' form."""
    if isinstance(update.client.training, LocalFedDyn):
        check_forms(
            dict(trained_parameters(model)), update.tensors, "drift", f"client {update.client.id}"
        )


@task_of
def train_dynamically(inputs: TaskInput) -> Recipe:
    """Trains near s - g_k, by which the regulariser is alpha/2 |w - (s - g_k)|^2 and a constant.

    It uploads ``classifier.*``, and ``drift.*`` for the client's own memory: g_k + w_k - s.
    """
    config = inputs.client.training
    assert isinstance(config, LocalFedDyn)
    alpha = config.alpha
    if config.adapted:
        alpha = alpha * float(inputs.broadcast["mean_samples"]) / len(inputs.shard)
    model = received_classifier(inputs, config)
    s = {name: p.detach().clone() for name, p in trained_parameters(model)}
    g = remembered_drift(inputs, config, model)
    recipe = classifier_recipe(inputs, plain(config, proximal=alpha), model)

    def upload() -> Tensors:
        own = {f"drift.{n}": g[n] + w.detach() - s[n] for n, w in trained_parameters(model)}
        return {**prefixed("classifier", model), **own}

    return replace(recipe, anchor=[s[n] - g[n] for n in s], upload=upload)


def remembered_drift(inputs: TaskInput, config: LocalFedDyn, model: nn.Module) -> Tensors:
    """g_k: what the client remembers; after FedProx's round w_k less the run's start; zeros for a
    client that has not taken part yet.

    Raises:
        ValueError: the memory is of another model.
    """
    memory, sender = inputs.remembered, "the client's memory"
    if any(name.startswith("drift.") for name in memory):
        found = checked(dict(trained_parameters(model)), memory, "drift", sender)
    else:
        first = starting_classifier(config, inputs.run_spec)
        own = checked(
            state_sent(first), memory or prefixed("classifier", first), "classifier", sender
        )
        found = {n: own[n] - p.detach() for n, p in trained_parameters(first)}
    return {name: drift.to(inputs.device) for name, drift in found.items()}


METHOD = Method(
    name="feddyn",
    config=FedDynConfig,
    assign=assign,
    run=run,
    one_shot=False,
    spaces=Spaces(local={**LOCAL, "classifier.alpha": LogUniform(1e-3, 1.0)}),
)
