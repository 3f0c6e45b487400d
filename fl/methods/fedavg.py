"""FedAvg (McMahan et al., AISTATS 2017), in one round (as in FedMHO's Section 5.1.2) or in many.

In each round some clients train the model that the server sent, and the server averages what they
upload. If there are several prototypes each is averaged by itself, and the averages form an
ensemble. Nothing is trained at the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn

from fl.clients import Clients
from fl.errors import UserError
from fl.federation import TaskInput, Training
from fl.fusion.aggregation import AggregationConfig
from fl.methods.method import Method
from fl.methods.participation import ParticipationConfig, participants
from fl.methods.prototypes import (
    LOCAL,
    PrototypesConfig,
    assign,
    average_each,
    untrained,
    weights_of,
)
from fl.rounds import Rounds
from fl.server import Evaluation, Outcome, Server
from fl.spaces import Spaces
from fl.training.classifier import ClassifierConfig, classifier_recipe, received_classifier
from fl.training.recipe import one_by_one


@dataclass(frozen=True, kw_only=True)
class AveragingConfig(AggregationConfig, ParticipationConfig, PrototypesConfig):
    """How the server averages, beside the settings of its clients."""

    weighting: Literal["samples", "uniform"] | None = None
    """Weights of the average: the clients' numbers of samples, or all alike. Default: samples in
    many rounds, as McMahan et al. have it; uniform in one, as FedMHO has it."""

    def check_further(self) -> None:
        """``weighting`` by samples goes with a rule that can weight clients."""
        super().check_further()
        if self.weighting == "samples" and not self.weights_clients:
            raise UserError(
                f"weighting must be uniform: aggregate {self.aggregate} counts all clients alike"
            )

    def by_samples(self, rounds: int) -> bool:
        """Whether clients are weighted by their samples in a run of so many rounds."""
        return (self.weighting or ("samples" if rounds > 1 else "uniform")) == "samples"


@dataclass(frozen=True, kw_only=True)
class FedAvgConfig(AveragingConfig):
    """FedAvg's settings: how the server averages, and which samples it is tested on."""

    tested: Literal["test", "clients", "tuned"] = "test"
    """test: the global model, on the test split. clients: on each client's own test samples, and
    the mean over clients. tuned: the same after each client has trained it once more."""


def run(clients: Clients, server: Server, config: FedAvgConfig, *, rounds: Rounds) -> Outcome:
    """Rounds of local training and averaging; ``start`` is the ensemble of untrained prototypes.

    In the first round nothing is sent, as the clients' starting weights are drawn from the seed.
    """
    ensemble, model = untrained(clients.members, server)
    by_samples = config.by_samples(rounds.count)
    evaluate = None if config.tested == "test" else partial(_at_clients, clients, model, config)
    for number in rounds.play(clients, server, ensemble, evaluate=evaluate):
        chosen = participants(clients, config.participation, number)
        payloads = clients.news(weights_of(model, clients, chosen))
        updates = clients.train(only=chosen, payloads=payloads)
        with server.events.phase("fusion"):
            average_each(model, updates, clients, server, by_samples=by_samples, rule=config)
    return rounds.outcome(ensemble)


def _at_clients(
    clients: Clients, model: Mapping[Training, nn.Module], config: FedAvgConfig
) -> Evaluation:
    build = tuned_model if config.tested == "tuned" else sent_model
    everyone = [client.id for client in clients.members]
    return clients.score(build, payloads=weights_of(model, clients, everyone))


def sent_model(inputs: TaskInput) -> nn.Module:
    """The global model, as the client received it."""
    return received_classifier(inputs, _training(inputs))


def tuned_model(inputs: TaskInput) -> nn.Module:
    """The global model after a round's local training at the client."""
    recipe = classifier_recipe(inputs, _training(inputs), sent_model(inputs))
    one_by_one(inputs, recipe)
    return recipe.model


def _training(inputs: TaskInput) -> ClassifierConfig:
    assert isinstance(inputs.client.training, ClassifierConfig)
    return inputs.client.training


METHOD = Method(
    name="fedavg",
    config=FedAvgConfig,
    assign=assign,
    run=run,
    supports_dp=True,
    one_shot=False,
    scores_clients=lambda settings: settings.tested != "test",
    spaces=Spaces(local=LOCAL),  # the average has no settings to search
)
