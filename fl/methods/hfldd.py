"""HFLDD (Shi et al., arXiv v2): heads of label-heterogeneous clusters do FedAvg on distilled data.

Clients send soft labels of public images. By these the server finds groups of clients that know the
same, and makes clusters of one client of each group. In a cluster every client but the head distils
its images and sends them to the head. From then on the heads alone train, on their own images and
those that they were sent, and the server averages them.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from fl.bounds import Count
from fl.clients import Clients, Relayed, trained
from fl.condensation.kip import KipTraining, checked_set, joined, share_images
from fl.data.datasets import AuxiliaryConfig
from fl.errors import ClientFailed, UserError
from fl.exchange import Tensors, prefixed
from fl.federation import RunSpec, TaskInput, TaskOutput, Update
from fl.fusion.aggregation import AggregationConfig
from fl.fusion.server import Server
from fl.json_files import JsonObject
from fl.methods.method import Assignment, Method, Spaces
from fl.methods.prototypes import LOCAL, assign_all
from fl.methods.uploads import combine_classifiers, untrained_classifier
from fl.receiving import check_probabilities, sent
from fl.rounds import Rounds
from fl.seeding import numpy_generator, seed_for
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig, classifier_recipe, received_classifier
from fl.training.losses import logits_of
from fl.training.personal import own_model
from fl.training.recipe import Recipe
from fl.training.task import task_of

# Clusters of clients: drawn at random, or heterogeneous by what the clients know.


def random_clusters(members: Sequence[int], count: int, seed: int) -> list[list[int]]:
    """The clients in ``count`` clusters of sizes that differ by one at most, drawn at random.

    Raises:
        UserError: more clusters than clients.
    """
    check_clusters(count, len(members), "clusters")
    drawn = numpy_generator(seed, "clusters").permutation(list(members))
    return [sorted(part.tolist()) for part in np.array_split(drawn, count)]


def check_clusters(count: int, num_clients: int, setting: str) -> None:
    """Raises `UserError` where there are more clusters or groups than clients."""
    if count > num_clients:
        raise UserError(f"{setting} must be in 1 to {num_clients}, the clients, got {count}")


def heterogeneous_clusters(groups: Sequence[int], seed: int) -> list[list[int]]:
    """ClusterSampling (HFLDD's Algorithm 1): one client of each group that is left, drawn at
    random, again and again, until none is left.

    Args:
        groups: the number of each client's group, of clients that are alike.
        seed: of the draw.
    """
    rng = numpy_generator(seed, "cluster-sampling")
    left = [
        rng.permutation([k for k, own in enumerate(groups) if own == group]).tolist()
        for group in sorted(set(groups))
    ]
    clusters = []
    while any(left):
        clusters.append(sorted(group.pop() for group in left if group))
    return clusters


def random_heads(clusters: Sequence[Sequence[int]], seed: int) -> list[int]:
    """One client of each cluster, drawn at random."""
    rng = numpy_generator(seed, "heads")
    return [int(rng.choice(list(cluster))) for cluster in clusters]


# What HFLDD's members send their heads: checked, and some of it shown in the report.

EXAMPLES = "examples."
"""Prefix, in the run's memory, of some images that members sent; see :func:`examples_of`."""
CLASSES_SHOWN, CLIENTS_SHOWN = 10, 2
"""As many classes at most give examples, and as many clients of each."""


def check_sent(update: Update, run_spec: RunSpec) -> None:
    """Raises `ValueError` unless it holds images by class, no more than the client has, and says
    of its distillation."""
    found = checked_set(update.client.id, update.tensors, run_spec)
    counts = [len(images) for images in found.values()]
    if min(counts) < 1 or sum(counts) > update.client.num_samples:
        raise ValueError(f"sent {counts} images by class, and has {update.client.num_samples}")
    if not {"steps", "nearest"} <= update.stats.keys():
        raise ValueError("does not report both its steps and its images' distance to real ones")


def examples_of(updates: Sequence[Update]) -> dict[str, Tensor]:
    """The first image of each class from some members, whatever it looks like.

    Returns:
        ``images`` (n, C, H, W), ``labels`` and ``clients`` (n,), their names after
        :data:`EXAMPLES`; nothing if nobody sent anything.
    """
    senders: dict[int, list[tuple[int, Tensor]]] = {}
    for update in updates:
        for name, images in update.tensors.items():
            own = update.client.id, images[:1]
            senders.setdefault(int(name.rpartition(".")[2]), []).append(own)
    chosen = [
        (label, client, image)
        for label in sorted(senders)[:CLASSES_SHOWN]
        for client, image in senders[label][:CLIENTS_SHOWN]
    ]
    if not chosen:
        return {}
    labels, clients, shown = zip(*chosen, strict=True)
    return {
        f"{EXAMPLES}images": torch.cat(shown),
        f"{EXAMPLES}labels": torch.tensor(labels),
        f"{EXAMPLES}clients": torch.tensor(clients),
    }


STARTS = 10
"""K-means starts so often; the clusters with the least spread count."""


@dataclass(frozen=True, kw_only=True)
class HFLDDConfig(AggregationConfig):
    """HFLDD's settings (Section VI-A)."""

    groups: Count | None = None
    """K, groups of clients that know the same. There are as many clusters as the largest of them
    has clients. Default: 10, as in the paper, or as many as there are clients if that is fewer."""
    knowing: ClassifierConfig = ClassifierConfig(epochs=10, lr=0.01, momentum=0.0, batch_size=64)
    """A client's training before it sends what it knows (E1 epochs), from the common start; the
    architecture is classifier's."""
    classifier: ClassifierConfig = ClassifierConfig(epochs=2, lr=0.01, momentum=0.0, batch_size=32)
    """A head's training in each round (E2 epochs)."""
    distilled: bool = True
    """Whether members send distilled images; else all their real ones (HFLDD w/o DD)."""
    kip: KipTraining = KipTraining()
    auxiliary: AuxiliaryConfig = AuxiliaryConfig(dataset="fmnist", max_images=1000)

    @property
    def first(self) -> ClassifierConfig:
        """A client's training before it sends what it knows."""
        return replace(self.knowing, model=self.classifier.model, width=self.classifier.width)

    def num_groups(self, num_clients: int) -> int:
        """K for so many clients."""
        return self.groups or min(10, num_clients)


def assign(config: HFLDDConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Every client trains the same classifier.

    Raises:
        UserError: more groups than clients, or a classifier that cannot take these images.
    """
    check_clusters(config.num_groups(num_clients), num_clients, "groups")
    return assign_all(config, num_clients, run_spec)


def run(
    clients: Clients, server: Server, config: HFLDDConfig, *, auxiliary: Tensor, rounds: Rounds
) -> Outcome:
    """Algorithm 2. Clusters and data are made in the first round, before the heads train."""
    model = untrained_classifier(config.classifier, server)
    memory: dict[str, Tensor] = {}

    def samples_of(update: Update) -> int:
        return int(memory["samples"][update.client.id])

    def check_head(update: Update, run_spec: RunSpec) -> None:
        """A head trains on what it was sent too."""
        client = replace(update.client, num_samples=samples_of(update))
        trained(replace(update, client=client), run_spec)

    for _ in rounds.play(clients, server, model, memory):
        if not memory:
            memory |= make_clusters(clients, server, config, auxiliary)
            config.check_clients(len(memory["heads"]))
            memory |= gather_data(clients, memory, config)
        heads = memory["heads"].tolist()
        updates = clients.map(
            train_head,
            only=heads,
            broadcast=clients.to_send(prefixed("classifier", model)),
            check=check_head,
        )
        refuse_lost(clients, heads)
        with server.events.phase("fusion"):
            combine_classifiers(model, updates, clients, server, config, samples_of)
        refuse_lost(clients, heads)
    outcome = rounds.outcome(model, figures=figures(memory))
    sent = {n.removeprefix(EXAMPLES): t for n, t in memory.items() if n.startswith(EXAMPLES)}
    return replace(outcome, sent=sent)


def make_clusters(
    clients: Clients, server: Server, config: HFLDDConfig, auxiliary: Tensor
) -> dict[str, Tensor]:
    """Steps 1 to 3: ``clusters`` (N,), the number of each client's (-1: dropped), and ``heads``."""
    clients.train(config.first, remember=True, goes_to="client")

    def check(update: Update, run_spec: RunSpec) -> None:
        shape = (len(auxiliary), run_spec.num_classes)
        check_probabilities(sent(update, "soft_labels", shape), "soft_labels")

    answers = clients.map(send_soft_labels, known={"public": auxiliary}, check=check)
    with server.events.phase("clustering"):
        soft = [update.tensors["soft_labels"] for update in answers]
        groups = group(divergence_matrix(soft), config.num_groups(len(soft)), clients.run_spec.seed)
        places = heterogeneous_clusters(groups.tolist(), clients.run_spec.seed)
        ids = [update.client.id for update in answers]
        clusters = [[ids[place] for place in cluster] for cluster in places]
        heads = random_heads(clusters, clients.run_spec.seed)
    found = torch.full((len(clients.members),), -1)
    for number, cluster in enumerate(clusters):
        found[cluster] = number
    return {"clusters": found, "heads": torch.tensor(heads)}


def send_soft_labels(inputs: TaskInput) -> TaskOutput:
    """S_i: the softmax outputs of the client's own model on the public images, (|D_g|, N_c)."""
    size = getattr(inputs.client.training, "batch_size", 64)
    logits = logits_of(own_model(inputs), inputs.broadcast["public"], size)
    return TaskOutput(tensors={"soft_labels": logits.softmax(1)})


def divergence_matrix(soft: Sequence[Tensor]) -> Tensor:
    """Eq. 4, M (N, N) float64: M_ij is the mean over images of KL(S_i || S_j)."""
    probabilities = torch.stack([s.double().clamp_min(1e-30).flatten() for s in soft])
    logs = probabilities.log()
    own = (probabilities * logs).sum(1, keepdim=True)
    return ((own - probabilities @ logs.T) / len(soft[0])).clamp_min(0)


def group(matrix: Tensor, count: int, seed: int) -> Tensor:
    """The group of each client, (N,), N at most: K-means on the rows, the best of ten starts."""
    from sklearn.cluster import KMeans  # late, as importing it is slow
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    state = seed_for(seed, "groups") % 2**32
    with threadpool_limits(1), warnings.catch_warnings():  # sums of several threads vary
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than groups
        means = KMeans(min(count, len(matrix)), n_init=STARTS, random_state=state)
        found = means.fit(matrix.double().cpu().numpy())
    return torch.from_numpy(found.labels_).long()


def gather_data(clients: Clients, memory: Tensors, config: HFLDDConfig) -> dict[str, Tensor]:
    """Step 4: the heads remember what the members of their clusters send them.

    Returns:
        ``samples`` (N,): |D_h| of the heads; ``sent``, ``steps`` and ``nearest`` (N,): images that
        each member sent, its steps of distillation, and their distance to real ones; and
        :func:`examples_of` what they sent.
    """
    clusters, heads = memory["clusters"].tolist(), memory["heads"].tolist()
    members = [k for k, cluster in enumerate(clusters) if cluster >= 0 and k not in heads]
    if config.distilled:
        updates = clients.train(config.kip, only=members, goes_to="peers", check=check_sent)
    else:
        updates = clients.map(share_images, only=members, goes_to="peers", check=check_sent)
    relayed = {head: Relayed() for head in heads}
    samples = torch.tensor([client.num_samples for client in clients.members])
    about = torch.zeros(3, len(clusters), dtype=torch.float64)
    for update in updates:
        k, head = update.client.id, heads[clusters[update.client.id]]
        own = checked_set(k, dict(update.tensors.items()), clients.run_spec)
        relayed[head] |= own
        sent = sum(len(images) for images in own.values())
        samples[head] += sent
        about[:, k] = torch.tensor([sent, update.stats["steps"], update.stats["nearest"]])
    clients.map(keep_data, only=heads, payloads=relayed, remember=True, goes_to="client")
    refuse_lost(clients, heads)
    found = {"samples": samples, "sent": about[0], "steps": about[1], "nearest": about[2]}
    return found | examples_of(updates)


def keep_data(inputs: TaskInput) -> TaskOutput:
    """A head's memory of what it was sent: D_h without its own images."""
    return TaskOutput(tensors=inputs.payload)


@task_of
def train_head(inputs: TaskInput) -> Recipe:
    """Eq. 5: a head's training from the model that was sent, on D_h."""
    config = inputs.record(ClassifierConfig)
    together = replace(inputs, shard=joined(inputs.shard, inputs.remembered))
    return classifier_recipe(together, config, received_classifier(inputs, config))


def refuse_lost(clients: Clients, heads: Sequence[int]) -> None:
    """Stops the run where a head was dropped, with which its cluster's part would be lost.

    Raises:
        ClientFailed: names it.
    """
    for head in heads:
        if head in clients.dropped:
            reason = f"{clients.dropped[head]}; it is its cluster's head, with what it was sent"
            raise ClientFailed(head, clients.members[head].model, reason)


def figures(memory: Tensors) -> JsonObject:
    """What the result says of clusters, and of how near the sent images are to real ones."""
    clusters = memory["clusters"].tolist()
    sent = memory["sent"] > 0
    shares = memory["sent"][sent]
    found: JsonObject = {
        "clusters": [
            [k for k, own in enumerate(clusters) if own == number]
            for number in range(len(memory["heads"]))
        ],
        "heads": memory["heads"].tolist(),
    }
    if len(shares):
        found["distilled"] = {
            "images": int(shares.sum()),
            "steps": float(memory["steps"][sent].mean()),
            "nearest_real": float((memory["nearest"][sent] * shares).sum() / shares.sum()),
        }
    return found


METHOD = Method(
    name="hfldd",
    config=HFLDDConfig,
    assign=assign,
    run=run,
    one_shot=False,
    fixed_samples=True,  # a head's, beside those that it is sent
    auxiliary=attrgetter("auxiliary"),
    spaces=Spaces(local=LOCAL),
)
