"""FedPer (Arivazhagan et al., 2019): the first layers are averaged, the others stay with a client.

In each round some clients put the layers that the server sent in front of their own head, train
both together, and upload the layers. The head is theirs: no byte of it is sent.
"""

from dataclasses import dataclass
from functools import partial

from fl.bounds import Number
from fl.client_map import Recipient
from fl.clients import Clients
from fl.federation import Client, RunSpec
from fl.methods.method import Assignment, Method
from fl.methods.personal import (
    LOCAL,
    Participations,
    PersonalConfig,
    average_layers,
    first_layers,
    layers_of,
    same_depth,
)
from fl.methods.personal import assign as assign_personal
from fl.methods.prototypes import participants
from fl.methods.uploads import combine, untrained_classifier
from fl.rounds import Rounds
from fl.server import Outcome, Server
from fl.spaces import Spaces
from fl.training.personal import own_model


@dataclass(frozen=True, kw_only=True)
class FedPerConfig(PersonalConfig):
    """How many layers are shared, beside the settings of the clients."""

    shared_layers: Number | None = None
    """Layers that are averaged, counted from the first; 0: none. Default: those before the
    flattening, as FedD2S's paper has it."""

    def depth(self, run_spec: RunSpec) -> int:
        """The number of shared layers.

        Raises:
            UserError: the model has fewer layers, or none that follow one another.
        """
        layers = layers_of(self, run_spec)
        if self.shared_layers is None:
            return layers.flattening
        layers.check(self.shared_layers, "shared_layers")
        return self.shared_layers


def assign(config: FedPerConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Every client trains the same classifier.

    Raises:
        UserError: the classifier cannot take these images, or has not so many layers.
    """
    config.depth(run_spec)
    return assign_personal(config, num_clients, run_spec)


def run(clients: Clients, server: Server, config: FedPerConfig, *, rounds: Rounds) -> Outcome:
    """Rounds of joint training; each client is scored with its own head on the newest layers."""
    return share_layers(clients, server, config, rounds=rounds)


def share_layers(
    clients: Clients,
    server: Server,
    config: FedPerConfig,
    *,
    rounds: Rounds,
    known: bool = False,
) -> Outcome:
    """FedPer's rounds. ``known``: whether a client's training needs to know which layers are
    shared, in the first round too, when none is sent."""
    model = untrained_classifier(config.classifier, server)
    layers, depth = layers_of(config, clients.run_spec), config.depth(clients.run_spec)
    names = {f"classifier.{name}" for name in layers.state_names(1, depth)}
    depths, taken = same_depth(clients, depth), Participations(clients)

    def goes_to(client: Client, name: str) -> Recipient:
        return "server" if name in names else "client"

    for number in rounds.play(
        clients,
        server,
        model,
        taken.memory,
        evaluate=lambda: clients.score(own_model, broadcast=first_layers(model, layers, depth)),
    ):
        chosen = participants(clients, config.participation, number)
        taken.count(chosen)
        newest = first_layers(model, layers, depth)
        updates = clients.train(
            only=chosen,
            broadcast=clients.to_send(newest),
            known=newest if known else None,
            remember=True,
            goes_to=goes_to,
        )
        with server.events.phase("fusion"):
            average = partial(average_layers, model, layers, depths=depths)
            combine(model, updates, clients, server, average)
    return rounds.outcome(model, figures=taken.fedavg_bytes(config.classifier, server))


METHOD = Method(
    name="fedper",
    config=FedPerConfig,
    assign=assign,
    run=run,
    one_shot=False,
    scores_clients=lambda settings: True,
    spaces=Spaces(local=LOCAL),
)
