"""FedPer+ (FedD2S, Section IV-A): FedPer whose clients share ever fewer of the first layers.

A client starts by sharing its whole model, and drops its deepest shared layer each time that it has
taken part in so many rounds: FedD2S's layer dropping, without its distillation. A layer is averaged
over those that still share it.
"""

from dataclasses import dataclass
from functools import partial

from fl.client_map import Recipient
from fl.clients import Clients
from fl.federation import Client, RunSpec
from fl.methods.method import Assignment, Method
from fl.methods.personal import (
    LOCAL,
    Dropping,
    Participations,
    PersonalConfig,
    average_layers,
    first_layers_each,
    layers_of,
)
from fl.methods.personal import assign as assign_personal
from fl.methods.prototypes import participants
from fl.methods.uploads import combine, untrained_classifier
from fl.rounds import Rounds
from fl.server import Outcome, Server
from fl.spaces import Choice, Distribution, Spaces
from fl.training.personal import own_model

DROPPING: dict[str, Distribution] = {"dropping.rate": Choice((1, 2, 3, 5, 7))}
"""A sweep's space of layer dropping."""


@dataclass(frozen=True, kw_only=True)
class FedPerPlusConfig(PersonalConfig):
    """Which layers are dropped and when, beside the settings of the clients."""

    dropping: Dropping = Dropping()


def assign(config: FedPerPlusConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Every client trains the same classifier.

    Raises:
        UserError: it cannot take these images, or has no such layers to drop.
    """
    config.dropping.check(layers_of(config, run_spec))
    return assign_personal(config, num_clients, run_spec)


def run(clients: Clients, server: Server, config: FedPerPlusConfig, *, rounds: Rounds) -> Outcome:
    """FedPer's rounds, with a depth of each client's own.

    In the first round all share everything, so that it is FedAvg's.
    """
    model = untrained_classifier(config.classifier, server)
    layers, taken = layers_of(config, clients.run_spec), Participations(clients)
    ids = [client.id for client in clients.members]

    def depths() -> dict[int, int]:
        return {k: config.dropping.depth(layers, taken[k]) for k in ids}

    def goes_to(client: Client, name: str) -> Recipient:
        depth = config.dropping.depth(layers, taken[client.id])
        shared = name.removeprefix("classifier.") in layers.state_names(1, depth)
        return "server" if shared else "client"

    for number in rounds.play(
        clients,
        server,
        model,
        taken.memory,
        evaluate=lambda: clients.score(
            own_model, payloads=first_layers_each(model, layers, depths(), ids)
        ),
    ):
        chosen = participants(clients, config.participation, number)
        taken.count(chosen)
        payloads = clients.to_send(first_layers_each(model, layers, depths(), chosen))
        updates = clients.train(
            only=chosen,
            payloads=payloads,
            remember=True,
            goes_to=goes_to,
        )
        with server.events.phase("fusion"):
            average = partial(average_layers, model, layers, depths=depths())
            combine(model, updates, clients, server, average)
    return rounds.outcome(model, figures=taken.fedavg_bytes(config.classifier, server))


METHOD = Method(
    name="fedper+",
    config=FedPerPlusConfig,
    assign=assign,
    run=run,
    one_shot=False,
    scores_clients=lambda settings: True,
    spaces=Spaces(local={**LOCAL, **DROPPING}),
)
