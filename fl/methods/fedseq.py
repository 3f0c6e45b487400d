"""FedSeq (IEEE Systems Journal, 2023, as HFLDD's paper compares with it): clusters in sequence.

In each round every cluster's first client starts from the model that the server sent, and each next
one from what the one before it left; the last hands the model back to the first, which uploads it.
The server averages over clusters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fl.bounds import Count
from fl.clients import Clients, Relayed, trained
from fl.errors import ClientFailed
from fl.exchange import Tensors, prefixed
from fl.federation import RunSpec, TaskInput, TaskOutput, Update
from fl.fusion.aggregation import AggregationConfig
from fl.fusion.server import Server
from fl.methods.hfldd import check_clusters, random_clusters, refuse_lost
from fl.methods.method import Assignment, Method, Spaces
from fl.methods.prototypes import LOCAL, assign_all
from fl.methods.uploads import combine_classifiers, untrained_classifier
from fl.rounds import Rounds
from fl.seeding import in_round, numpy_generator
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig


@dataclass(frozen=True, kw_only=True)
class FedSeqConfig(AggregationConfig):
    """How many clusters there are, and how their clients train."""

    clusters: Count | None = None
    """Clusters, drawn once; their sizes differ by one at most. Default: clusters of about ten
    clients, as HFLDD's paper has it."""
    classifier: ClassifierConfig = ClassifierConfig(epochs=2, lr=0.01, momentum=0.0, batch_size=32)

    def num_clusters(self, num_clients: int) -> int:
        """How many clusters so many clients are in."""
        return self.clusters or max(1, round(num_clients / 10))


def assign(config: FedSeqConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Every client trains the same classifier.

    Raises:
        UserError: more clusters than clients, too few for the rule that aggregates them, or a
            classifier that cannot take these images.
    """
    check_clusters(config.num_clusters(num_clients), num_clients, "clusters")
    config.check_clients(config.num_clusters(num_clients))
    return assign_all(config, num_clients, run_spec)


def run(clients: Clients, server: Server, config: FedSeqConfig, *, rounds: Rounds) -> Outcome:
    """Rounds of training in sequence; the order within a cluster is drawn anew in each round."""
    model = untrained_classifier(config.classifier, server)
    ids = [client.id for client in clients.members]
    clusters = random_clusters(ids, config.num_clusters(len(ids)), clients.run_spec.seed)
    for number in rounds.play(clients, server, model):
        orders = [_order(clients, cluster, number) for cluster in clusters]
        carried = _train_in_turn(clients, orders, clients.to_send(prefixed("classifier", model)))
        heads = {order[0]: Relayed(carried[i]) for i, order in enumerate(orders)}
        ends = clients.map(hand_up, only=heads, payloads=heads, check=trained)
        refuse_lost(clients, sorted(heads))
        with server.events.phase("fusion"):
            weight = partial(_samples, clients, {order[0]: order for order in orders})
            combine_classifiers(model, ends, clients, server, config, weight)
    return rounds.outcome(model)


def _order(clients: Clients, cluster: Sequence[int], number: int) -> list[int]:
    """The cluster's clients in the order in which they train in this round."""
    able = [k for k in cluster if k not in clients.dropped]
    if not able:
        k = cluster[0]
        raise ClientFailed(k, clients.members[k].model, "no client of its cluster is left")
    stream = in_round("sequence", number)
    return numpy_generator(clients.run_spec.seed, stream, cluster[0]).permutation(able).tolist()


def _train_in_turn(
    clients: Clients, orders: Sequence[Sequence[int]], sent: Tensors
) -> list[Tensors]:
    """The weights that each cluster's last client hands on; the clusters train side by side.

    ``sent`` reaches the first clients. A client that is dropped on the way leaves the model as it
    is.
    """
    carried: list[Tensors] = [sent for _ in orders]
    for place in range(max(map(len, orders))):
        places = {order[place]: i for i, order in enumerate(orders) if place < len(order)}
        messages = {k: Relayed(carried[i]) if place else carried[i] for k, i in places.items()}
        updates = clients.train(only=places, payloads=messages, goes_to="peers")
        for update in updates:
            carried[places[update.client.id]] = Relayed(update.tensors.items())
    return carried


def hand_up(inputs: TaskInput) -> TaskOutput:
    """The model that a cluster's last client handed to its first, for the server."""
    return TaskOutput(tensors=inputs.payload)


def _samples(clients: Clients, orders: Mapping[int, Sequence[int]], end: Update) -> int:
    order = orders[end.client.id]
    return sum(clients.members[k].num_samples for k in order if k not in clients.dropped)


METHOD = Method(
    name="fedseq",
    config=FedSeqConfig,
    assign=assign,
    run=run,
    one_shot=False,
    spaces=Spaces(local=LOCAL),
)
