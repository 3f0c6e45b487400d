"""SCAFFOLD (Karimireddy et al., ICML 2020): FedAvg whose clients correct their drift.

Client k steps along its gradient plus c - c_k from the weights x that were sent, and the controls
follow (Algorithm 1, option II), with tau local steps and K clients in all::

    c_k+ = c_k - c + (x - w_k) / (tau lr)
    x = x + mean_k (w_k - x)
    c = c + sum_k (c_k+ - c_k) / K

A client sends its weights and the change of its control, and is sent x and c.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from fl.bounds import Within
from fl.clients import Clients
from fl.errors import UserError
from fl.exchange import Tensors
from fl.federation import TaskInput, Training
from fl.fusion.server import Server
from fl.methods.averaging import Averaging, averaging_method
from fl.methods.prototypes import ParticipationConfig, PrototypesConfig
from fl.models.state import parameters_sent
from fl.rounds import Rounds
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig, classifier_recipe, received_classifier
from fl.training.epochs import smallest_batch
from fl.training.optimizers import Corrected
from fl.training.personal import AfterFedAvg
from fl.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class LocalScaffold(AfterFedAvg, ClassifierConfig):
    """Local training of a SCAFFOLD client: plain SGD, corrected."""

    momentum: Annotated[float, Within(0, 0)] = 0.0
    """None: a control is the mean gradient of plain steps."""

    @property
    def first_round(self) -> ClassifierConfig:
        """Its own record: it sends the change of its control from the first round on."""
        return self

    def check_further(self) -> None:
        """A control is the mean gradient of a known number of plain steps."""
        self.refuse_pace("scaffold")
        if self.optimizer != "sgd" or self.proximal or self.patience is not None:
            raise UserError("optimizer must be sgd in scaffold, without proximal and patience")

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains along each gradient plus c - c_k; a control that was never sent is 0."""
        model = received_classifier(inputs, self)
        x = {name: p.clone() for name, p in parameters_sent(model).items()}
        c, own = controls_in(inputs.payload, x), controls_in(inputs.remembered, x)
        tau = self.steps(len(inputs.shard), smallest_batch(model))

        def upload() -> Tensors:
            tensors = recipe.upload()
            for name, w in parameters_sent(model).items():
                change = (x[name] - w) / (tau * self.lr) - c[name]
                tensors |= {f"control.{name}": own[name] + change, f"change.{name}": change}
            return tensors

        apart = [c[n] - own[n] for n, p in model.named_parameters() if p.requires_grad]
        recipe, optimizer = classifier_recipe(inputs, self, model), Corrected(self.make_optimizer())
        return replace(recipe, optimizer=optimizer, anchor=apart, upload=upload)


@dataclass(frozen=True, kw_only=True)
class ScaffoldConfig(ParticipationConfig, PrototypesConfig):
    """SCAFFOLD's settings: those of its clients."""

    classifier: LocalScaffold = LocalScaffold()


def run(clients: Clients, server: Server, config: ScaffoldConfig, *, rounds: Rounds) -> Outcome:
    """Algorithm 1 with the server's step 1: the mean of the weights, and the controls."""
    frame = Averaging(clients, server, config, rounds)
    frame.refuse_drops("control")
    controls = {key: torch.zeros_like(mean) for _, _, key, mean in frame.parameters()}

    def start() -> dict[Training, Tensors]:
        sent = frame.weights()
        for training, name, key, _ in frame.parameters():
            sent[training][f"control.{name}"] = controls[key]
        return sent

    for updates in frame.play(
        controls,
        start=start,
        remember=True,
        goes_to=lambda client, name: "client" if name.startswith("control.") else "server",
        check=frame.also("control", "change"),
    ):
        for move in frame.moves(updates):
            for update in move.updates:
                change = update.tensors[f"change.{move.name}"].to(server.device)
                controls[move.key] += change / move.clients
    return rounds.outcome(frame.ensemble)


def controls_in(tensors: Tensors, like: Tensors) -> Tensors:
    """The controls ``control.*`` in a message or memory, zeros where there are none."""
    zeros = {name: torch.zeros_like(p) for name, p in like.items()}
    return {name: tensors.get(f"control.{name}", z).to(z.device) for name, z in zeros.items()}


METHOD = averaging_method("scaffold", ScaffoldConfig, run, any_targets=True)
