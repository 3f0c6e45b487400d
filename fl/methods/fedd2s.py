"""FedD2S (Atapour et al., 2024): distillation between clients and server, ever less deep.

In each round some clients upload, for every sample, what their first layer makes of it and what a
deeper one does, the distillation layer, with the label. A copy of the global model for each client
learns from these, layers 2 to L, and the mean of the copies is the new global model. Its soft
labels go back to the clients, whose models learn them up to the distillation layer. That layer is
the last one at first, and the next shallower each time that a client has taken part in Z0 rounds.
No weight of a client's model is ever sent, nor its images.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, Number, Positive
from fl.errors import UserError
from fl.exchange import Tensors, prefixed
from fl.federation import Batch, RunSpec, Task, TaskInput, TaskOutput, Update
from fl.fusion.aggregation import average_into
from fl.methods.fedper import DROPPING, FedPerPlusConfig, assign
from fl.methods.personal import (
    Personal,
    Shapes,
    checked_labels,
    layers_of,
    output_shapes,
    personal_method,
)
from fl.methods.uploads import untrained_classifier
from fl.models.layered import Layers
from fl.models.registry import copied, smallest_batch
from fl.receiving import sent
from fl.training.classifier import ClassifierConfig
from fl.training.losses import divergences
from fl.training.optimizers import Parts
from fl.training.personal import PersonalTraining, own_model, personal_model
from fl.training.recipe import Step, cut, epochs_of, minimise
from fl.training.task import train_by_recipe


@dataclass(frozen=True, kw_only=True)
class LocalFedD2S(PersonalTraining):
    """Local training of a FedD2S client, on the global model's soft labels and its own labels."""

    epochs: Count = 2
    """Epochs of a round, each batch once for either loss (FedD2S's paper: 2)."""
    distance: Literal["kl", "mse"] = "kl"
    """What is brought together: soft labels by way of the head model, or (Table 3's ablation) the
    outputs of the distillation layer themselves."""
    temperature: Positive = 1.0
    """Temperature of all soft labels; the paper names none."""

    def check_further(self) -> None:
        """Refuses what steps on two losses in turn leave out."""
        super().check_further()
        own = (self.proximal, self.patience, self.micro_batch, self.precision)
        if own != (0.0, None, None, "fp32"):
            raise UserError(
                "fedd2s alternates between two losses: leave out proximal, patience, micro_batch "
                "and precision"
            )

    @property
    def first_round(self) -> ClassifierConfig:
        """Its own record: it is taught from the first round on."""
        return self

    @property
    def task(self) -> Task:
        """The task in which such a client learns."""
        return train_distilled


@dataclass(frozen=True, kw_only=True)
class FedD2SConfig(FedPerPlusConfig):
    """FedD2S's settings: which layers are dropped and when, those of its clients, the server's."""

    classifier: LocalFedD2S = LocalFedD2S()
    server_epochs: Count = 2
    """Epochs of each client's copy of the global model in a round; the paper names none."""
    fixed_layer: Number | None = None
    """Distillation layer of all rounds, in place of dropping layers: FedD2S* of Figure 5, where it
    is 3 by our reading. Default: layers are dropped."""

    def check_layers(self, layers: Layers) -> None:
        """Raises `UserError` if the model has no such layers."""
        if self.fixed_layer is not None:
            layers.check(self.fixed_layer, "fixed_layer", least=1)
        super().check_layers(layers)

    def depth(self, layers: Layers, participations: int) -> int:
        """l, a client's distillation layer."""
        return self.fixed_layer or super().depth(layers, participations)


def run(frame: Personal, config: FedD2SConfig) -> None:
    """Algorithm 1. The global model's first layer is never used nor changed."""
    clients, server = frame.clients, frame.server
    model = untrained_classifier(config.classifier, server)
    layers = layers_of(config, clients.run_spec)
    shapes = output_shapes(model, layers, clients.run_spec.inputs)

    def depth(client: int) -> int:
        return config.depth(layers, frame.taken(client))

    def check_answers(update: Update, run_spec: RunSpec) -> None:
        received(update, layers, shapes, depth(update.client.id), torch.device("cpu"))

    for chosen in frame.play(model):
        # A client counts its rounds itself; by the server's count it need not remember them.
        known = {"depth": torch.tensor([depth(client.id) for client in clients.members])}
        updates = clients.map(send_knowledge, only=chosen, known=known, check=check_answers)
        if not updates:  # all that took part were dropped
            continue
        with server.events.phase("fusion"):
            knowledge = {
                u.client.id: received(u, layers, shapes, depth(u.client.id), server.device)
                for u in updates
            }
            copies = (taught_copy(model, layers, own, config) for own in knowledge.values())
            average_into(model, copies)  # Eq. 11
            answers = {k: answered(model, layers, own, config) for k, own in knowledge.items()}
        clients.train(
            only=list(answers), payloads=answers, known=known, remember=True, goes_to="client"
        )


def send_knowledge(inputs: TaskInput) -> TaskOutput:
    """H_1 and H_l of every sample, and its label, in the shard's order; H_1 alone if l = 1."""
    config = inputs.record(LocalFedD2S)
    depth = int(inputs.broadcast["depth"][inputs.client.id])
    model = own_model(inputs).eval()
    layers, images = Layers(model), inputs.shard.images.to(inputs.device)
    first = layers.outputs(model, images, 1, 1, config.batch_size)
    tensors = {"first": first, "labels": inputs.shard.labels}
    if depth > 1:
        tensors["deep"] = layers.outputs(model, first, 2, depth, config.batch_size)
    return TaskOutput(tensors=tensors)


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What one client sent: a row for each of its samples."""

    depth: int
    """l, its distillation layer."""
    first: Tensor
    """H_1."""
    deep: Tensor
    """H_l."""
    labels: Tensor


def received(
    update: Update, layers: Layers, shapes: Shapes, depth: int, device: torch.device
) -> Knowledge:
    """A client's upload, checked, on the device; ``shapes``: of a sample after each layer.

    Raises:
        ValueError: it is not what these layers make of its samples.
    """
    size = update.client.num_samples
    first = sent(update, "first", (size, *shapes[0])).to(device)
    deep = first
    if depth > 1:
        deep = sent(update, "deep", (size, *shapes[depth - 1])).to(device)
    return Knowledge(depth, first, deep, checked_labels(update, shapes[-1][0]).to(device))


def taught_copy(model: nn.Module, layers: Layers, own: Knowledge, config: FedD2SConfig) -> Tensors:
    """The weights of a copy of the global model after its epochs on one client's samples, batches
    in their order: a step each on the distance of soft labels (Eq. 9) and cross-entropy (Eq. 10).
    """
    copy, last, local = copied(model).train(), len(layers.names), config.classifier
    parts = [layers.parameters(copy, 2, own.depth), layers.parameters(copy, own.depth + 1, last)]

    def distance(rows: Tensor) -> Tensor:
        first, deep = own.first[rows], own.deep[rows]
        if local.distance == "mse":
            return F.mse_loss(layers.forward(copy, first, 2, own.depth), deep)
        with torch.no_grad():
            teacher = layers.forward(copy, deep, own.depth + 1, last)
        student = layers.forward(copy, first, 2, last)
        return divergences(teacher, student, local.temperature).mean()

    def steps() -> Iterator[Step]:
        for _ in range(config.server_epochs):
            for rows in cut(torch.arange(len(own.labels)), local.batch_size, smallest_batch(copy)):
                if own.depth > 1:  # else both sides are the same, and Adam would follow rounding
                    yield Step(distance(rows), (0,) if local.distance == "mse" else (0, 1))
                logits = layers.forward(copy, own.first[rows], 2, last)
                yield Step(F.cross_entropy(logits, own.labels[rows]), (0, 1))

    minimise(steps(), parts, Parts(local.make_optimizer(), parts))
    return copy.state_dict()


@torch.no_grad()
def answered(model: nn.Module, layers: Layers, own: Knowledge, config: FedD2SConfig) -> Tensors:
    """What a client learns from: the global model's logits of its samples and the layers after the
    distillation layer; with distance mse the output of that layer instead of both."""
    if config.classifier.distance == "mse":
        return {"targets": layers.forward(model.eval(), own.first, 2, own.depth)}
    state, last = model.state_dict(), len(layers.names)
    head = {f"classifier.{n}": state[n] for n in layers.state_names(own.depth + 1, last)}
    return {"targets": layers.forward(model.eval(), own.first, 2, last), **head}


def train_distilled(inputs: TaskInput) -> TaskOutput:
    """Trains the client's own model, each batch once on the distance to what the global model
    answered (Eq. 12), layers 1 to l alone, and once on cross-entropy (Eq. 13), all layers.

    The global model's later layers, which were sent, stay as they are. Without an answer of the
    server the client trains by itself.
    """
    config = inputs.record(LocalFedD2S)
    if "targets" not in inputs.payload:  # as when a step is measured
        return train_by_recipe(inputs)
    depth = int(inputs.broadcast["depth"][inputs.client.id])
    model = personal_model(replace(inputs, payload={}), config).train()
    layers = Layers(model)
    last = len(layers)
    head = None
    if config.distance == "kl":  # a frozen model with the layers that were sent
        head = personal_model(replace(inputs, remembered={}), config).eval().requires_grad_(False)
    parts = [layers.parameters(model, 1, depth), layers.parameters(model, depth + 1, last)]

    def distance(batch: Batch) -> Tensor:
        deep = layers.forward(model, batch["images"], 1, depth)
        if head is None:
            return F.mse_loss(deep, batch["targets"])
        own = layers.forward(head, deep, depth + 1, last)
        return divergences(batch["targets"], own, config.temperature).mean()

    def steps() -> Iterator[Step]:
        is_first = True
        columns = {"targets": inputs.payload["targets"]}
        for epoch in epochs_of(inputs, config, model, columns=columns):
            for batch in epoch:
                if depth > 1 or not is_first:  # layer 1 has not moved yet: nothing but rounding
                    yield Step(distance(batch), (0,))
                is_first = False
                yield Step(F.cross_entropy(model(batch["images"]), batch["labels"]), (0, 1))

    minimise(steps(), parts, Parts(config.make_optimizer(), parts))
    return TaskOutput(tensors=prefixed("classifier", model))


METHOD = personal_method(
    "fedd2s", FedD2SConfig, run, local=DROPPING, assign=assign, fixed_samples=True, default_ranks=1
)
