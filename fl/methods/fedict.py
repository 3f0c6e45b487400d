"""FedICT (Wu et al., TPDS 2023): clients and a head at the server teach each other by logits.

In each round some clients train their own model, taught by the logits that the server's head gave
for their samples when they last took part. They upload the features of every sample, its logits and
label; the server trains one head on all of these, taught by the clients' logits, and keeps what it
answers for the next time. No weight of a model is sent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, NotNegative, Positive
from fl.errors import UserError
from fl.exchange import Tensors
from fl.federation import Batch, RunSpec, TaskInput, TaskOutput, Update
from fl.methods.fedper import FedPerConfig, assign
from fl.methods.method import LogUniform
from fl.methods.personal import Personal, checked_labels, layers_of, output_shapes, personal_method
from fl.methods.uploads import untrained_classifier
from fl.models.layered import Layers
from fl.models.registry import smallest_batch
from fl.receiving import check_label_counts, sent
from fl.training.classifier import classifier_recipe
from fl.training.losses import divergences
from fl.training.personal import PersonalTraining, own_model, personal_model
from fl.training.recipe import Recipe, Step, cut, minimise


@dataclass(frozen=True, kw_only=True)
class LocalFedICT(PersonalTraining):
    """Local training of a FedICT client: a classifier's, taught by the server's head."""

    epochs: Count = 2
    """Local epochs of a round (FedD2S's paper: 2)."""
    weight: NotNegative = 0.15
    """Weight alpha of the distillation at the client. The authors' code has 1.5, but takes a second
    softmax of the answers, so that they count 4 to 31 times less there: 0.15 comes to the same."""
    temperature: Positive = 3.0
    """Temperature tau of the soft labels; the authors' code has 3."""
    knowledge: Positive = 3.0
    """T: a class counts 1 + d/T times, where d is its share of the client's samples."""

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains by :meth:`losses`; untaught if there are no answers of the server yet."""
        model = personal_model(inputs, self)
        if not self.weight:
            return classifier_recipe(inputs, self, model)
        counts, size = inputs.shard.label_counts, len(inputs.shard)
        shares = 1 + counts / counts.sum() / self.knowledge
        taught = inputs.payload.get("taught")
        columns = {
            "taught": torch.zeros(size, len(counts)) if taught is None else taught,
            "counted": torch.full((size,), float(taught is not None)),
            "shares": shares.expand(size, -1),
        }
        return classifier_recipe(inputs, self, model, losses=self.losses, columns=columns)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """CE + alpha FPKD, (B,): the divergence from the server's answers, class by class by the
        client's own shares."""
        logits = model(batch["images"])
        entropy = F.cross_entropy(logits, batch["labels"], reduction="none")
        distance = divergences(batch["taught"], logits, self.temperature, batch["shares"])
        return entropy + self.weight * batch["counted"] * distance


@dataclass(frozen=True, kw_only=True)
class FedICTConfig(FedPerConfig):
    """FedICT's settings; ``shared_layers`` are those before the features that are uploaded."""

    classifier: LocalFedICT = LocalFedICT()
    server_epochs: Count = 2
    """Epochs of the server's head in a round (FedD2S's paper: 2)."""
    server_weight: NotNegative = 1.5
    """Weight of the cross-entropy at the server beside the distillation."""
    alignment: Literal["similarity", "balance"] = "similarity"
    """What a client's soft labels count at the server beside 1: the cosine of its label
    distribution and all clients', or, class by class, their difference over U."""
    balance: Positive = 7.0
    """U of alignment balance; the authors' code has 7."""

    def check_layers(self, layers: Layers) -> None:
        """Raises `UserError` if the model has no layer on either side of the features."""
        if not 0 < self.depth(layers) < len(layers):
            raise UserError(
                f"shared_layers must be in 1 to {len(layers) - 1} ({', '.join(layers.names)}), so "
                f"that a head is left, got {self.shared_layers}"
            )


def run(frame: Personal, config: FedICTConfig) -> None:
    """Rounds of local training, sending features, and training of the head at the server.

    The server's memory holds its head, each client's label distribution, and its answers for each
    client's samples.
    """
    clients, server, taken = frame.clients, frame.server, frame.taken
    model = untrained_classifier(config.classifier, server)
    layers = layers_of(config, clients.run_spec)
    depth = config.depth(layers)
    shape = output_shapes(model, layers, clients.run_spec.inputs)[depth - 1]
    memory = frame.memory

    def check_answers(update: Update, run_spec: RunSpec) -> None:
        size, classes = update.client.num_samples, run_spec.num_classes
        sent(update, "features", (size, *shape))
        sent(update, "logits", (size, classes))
        checked_labels(update, classes)
        if taken(update.client.id) == 1:
            check_label_counts(update, run_spec)

    for chosen in frame.play(model):
        answered = {k: {"taught": memory[f"answers.{k}"]} for k in chosen if taken(k) > 1}
        clients.train(only=chosen, payloads=answered, remember=True, goes_to="client")
        first_time = torch.tensor([taken(client.id) == 1 for client in clients.members])
        known = {"depth": torch.tensor(depth), "first_time": first_time}
        updates = clients.map(send_features, only=chosen, known=known, check=check_answers)
        with server.events.phase("fusion"):
            for update in updates:
                if taken(update.client.id) == 1:
                    counts = update.tensors["label_counts"]
                    memory[f"counts.{update.client.id}"] = counts.to(server.device)
            lessons = [lesson(update, memory, config, server.device) for update in updates]
            teach_head(model, layers, depth, lessons, config)
            for update, own in zip(updates, lessons, strict=True):
                memory[f"answers.{update.client.id}"] = answers(model, layers, depth, own)


def send_features(inputs: TaskInput) -> TaskOutput:
    """Features of every sample after the shared layers, its logits and its label, in the shard's
    order; the first time how many samples the client has of each class, too."""
    config = inputs.record(LocalFedICT)
    depth, size = int(inputs.broadcast["depth"]), config.batch_size
    model = own_model(inputs).eval()
    layers, images = Layers(model), inputs.shard.images.to(inputs.device)
    features = layers.outputs(model, images, 1, depth, size)
    tensors = {
        "features": features,
        "logits": layers.outputs(model, features, depth + 1, len(layers), size),
        "labels": inputs.shard.labels,
    }
    if inputs.broadcast["first_time"][inputs.client.id]:
        tensors["label_counts"] = inputs.shard.label_counts
    return TaskOutput(tensors=tensors)


@dataclass(frozen=True, eq=False)
class Lesson:
    """What the server learns from one client: a row for each of the client's samples."""

    features: Tensor
    logits: Tensor
    labels: Tensor
    shares: Tensor
    """What a class counts in the client's soft labels, (classes,)."""


def lesson(update: Update, memory: Tensors, config: FedICTConfig, device: torch.device) -> Lesson:
    """A client's upload on the device; the memory has all clients' label counts."""
    own = memory[f"counts.{update.client.id}"]
    everyone = torch.stack([t for name, t in memory.items() if name.startswith("counts.")]).sum(0)
    overall, local = everyone / everyone.sum(), own / own.sum()
    if config.alignment == "similarity":
        shares = 1 + F.cosine_similarity(overall, local, dim=0).expand(len(own))
    else:
        shares = 1 + (overall - local) / config.balance
    features, logits, labels = (
        update.tensors[name].to(device) for name in ("features", "logits", "labels")
    )
    return Lesson(features, logits, labels, shares.to(device))


def teach_head(
    model: nn.Module, layers: Layers, depth: int, lessons: Sequence[Lesson], config: FedICTConfig
) -> None:
    """Trains the model's layers after ``depth`` on LKA + weight CE, client after client."""
    head, local = layers.parameters(model, depth + 1, len(layers.names)), config.classifier
    least = smallest_batch(model.train())

    def steps() -> Iterator[Step]:
        for _ in range(config.server_epochs):
            for own in lessons:
                for rows in cut(torch.arange(len(own.labels)), local.batch_size, least):
                    logits = layers.forward(model, own.features[rows], depth + 1, len(layers.names))
                    distance = divergences(own.logits[rows], logits, local.temperature, own.shares)
                    entropy = F.cross_entropy(logits, own.labels[rows])
                    yield Step(distance.mean() + config.server_weight * entropy)

    minimise(steps(), [head], local.make_optimizer().for_cohort([head]))
    model.eval()


@torch.no_grad()
def answers(model: nn.Module, layers: Layers, depth: int, own: Lesson) -> Tensor:
    """The head's logits of a client's samples, (n, classes)."""
    return layers.forward(model, own.features, depth + 1, len(layers.names))


METHOD = personal_method(
    "fedict",
    FedICTConfig,
    run,
    local={"classifier.weight": LogUniform(0.1, 10.0)},
    assign=assign,
    fixed_samples=True,
    default_ranks=1,
)
