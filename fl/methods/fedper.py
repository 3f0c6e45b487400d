"""FedPer (Arivazhagan et al., 2019): the first layers are averaged, the others stay with a client.

In each round some clients put the layers that the server sent in front of their own head, train
both together, and upload the layers. The head is theirs: no byte of it is sent.

FedPer+ (FedD2S, Section IV-A): a client starts by sharing its whole model, and drops its deepest
shared layer each time that it has taken part in so many rounds: FedD2S's layer dropping, without
its distillation. A layer is averaged over those that still share it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from fl.bounds import Number
from fl.client_map import Recipient
from fl.clients import Clients
from fl.exchange import Tensors
from fl.federation import Client, RunSpec
from fl.fusion.server import Server
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
from fl.methods.prototypes import assign_all
from fl.methods.uploads import combine, untrained_classifier
from fl.rounds import Rounds
from fl.server import Evaluation, Outcome
from fl.spaces import Choice, Distribution, Spaces
from fl.training.personal import own_model

DROPPING: dict[str, Distribution] = {"dropping.rate": Choice((1, 2, 3, 5, 7))}
"""A sweep's space of layer dropping."""


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


@dataclass(frozen=True, kw_only=True)
class FedPerPlusConfig(PersonalConfig):
    """Which layers are dropped and when, beside the settings of the clients."""

    dropping: Dropping = Dropping()


def assign(config: FedPerConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Every client trains the same classifier.

    Raises:
        UserError: the classifier cannot take these images, or has not so many layers.
    """
    config.depth(run_spec)
    return assign_all(config, num_clients, run_spec)


def assign_dropping(
    config: FedPerPlusConfig, num_clients: int, run_spec: RunSpec
) -> list[Assignment]:
    """Every client trains the same classifier.

    Raises:
        UserError: it cannot take these images, or has no such layers to drop.
    """
    config.dropping.check(layers_of(config, run_spec))
    return assign_all(config, num_clients, run_spec)


def run(
    clients: Clients, server: Server, config: FedPerConfig, *, rounds: Rounds, known: bool = False
) -> Outcome:
    """Rounds of joint training; each client is scored with its own head on the newest layers.

    ``known``: as of :func:`share_layers`.
    """
    depth = config.depth(clients.run_spec)
    return share_layers(clients, server, config, lambda times: depth, rounds=rounds, known=known)


def run_dropping(
    clients: Clients, server: Server, config: FedPerPlusConfig, *, rounds: Rounds
) -> Outcome:
    """FedPer's rounds, with a depth of each client's own; the first one is FedAvg's."""
    depth = partial(config.dropping.depth, layers_of(config, clients.run_spec))
    return share_layers(clients, server, config, depth, rounds=rounds)


def share_layers(
    clients: Clients,
    server: Server,
    config: PersonalConfig,
    depth: Callable[[int], int],
    *,
    rounds: Rounds,
    known: bool = False,
) -> Outcome:
    """w_l = sum_k n_k / n w_k,l of each layer l, over the clients k that share it.

    Args:
        clients, server, config, rounds: of the run.
        depth: how many of the first layers a client shares that has taken part so often.
        known: whether a client's training needs to know which layers are shared, in the first
            round too, when none is sent; then all share equally many.
    """
    model = untrained_classifier(config.classifier, server)
    layers, taken = layers_of(config, clients.run_spec), Participations(clients)
    everyone = [client.id for client in clients.members]

    def depths() -> dict[int, int]:
        return {k: depth(taken[k]) for k in everyone}

    def newest(ids: Iterable[int]) -> dict[int, Tensors]:
        return first_layers_each(model, layers, depths(), ids)

    def goes_to(client: Client, name: str) -> Recipient:
        shared = layers.state_names(1, depth(taken[client.id]))
        return "server" if name.removeprefix("classifier.") in shared else "client"

    def scored() -> Evaluation:
        return clients.score(own_model, payloads=newest(everyone))

    for chosen in taken.play(rounds, server, config, model, evaluate=scored):
        shared = newest(chosen)
        updates = clients.train(
            only=chosen,
            payloads=clients.to_send(shared),
            known=shared[chosen[0]] if known else None,
            remember=True,
            goes_to=goes_to,
        )
        with server.events.phase("fusion"):
            average = partial(average_layers, model, layers, depths=depths())
            combine(model, updates, clients, server, average)
    return rounds.outcome(model, figures=taken.fedavg_bytes())


METHODS = [
    Method(
        name="fedper",
        config=FedPerConfig,
        assign=assign,
        run=run,
        one_shot=False,
        scores_clients=lambda settings: True,
        spaces=Spaces(local=LOCAL),
    ),
    Method(
        name="fedper+",
        config=FedPerPlusConfig,
        assign=assign_dropping,
        run=run_dropping,
        one_shot=False,
        scores_clients=lambda settings: True,
        spaces=Spaces(local={**LOCAL, **DROPPING}),
    ),
]
