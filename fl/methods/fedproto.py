"""FedProto (Tan et al., AAAI 2022): clients share each class's mean features, and no weights.

A client trains its own model by CE + lambda |f(x) - C_y|^2 (Eq. 7; the mean over the d features, as
the authors' code has it), with the global prototype C of each class, and sends its own classes'
mean features. The server averages these by the clients' samples of the class (Eq. 6, without its
second division by the number of clients, which the authors' code has not). Each client is scored
by its own model.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import NotNegative
from fl.errors import UserError
from fl.federation import Batch, RunSpec, TaskInput, TaskOutput, Training, Update
from fl.methods.method import Assignment, LogUniform
from fl.methods.personal import AnyModelsConfig, Personal, personal_method
from fl.methods.prototypes import assign_all
from fl.receiving import check_label_counts, sent
from fl.training.classifier import classifier_recipe, starting_classifier
from fl.training.features import features_and_logits, features_of
from fl.training.personal import PersonalTraining, own_model, personal_model
from fl.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class LocalFedProto(PersonalTraining):
    """Local training of a FedProto client: a classifier's, drawn to the global prototypes."""

    needs_head = "fedproto"

    attraction: NotNegative = 1.0
    """lambda, the weight of the distance to the prototypes (the paper: 1)."""

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains by :meth:`losses`; without prototypes while a step is measured."""
        model = personal_model(replace(inputs, broadcast={}), self)
        if "prototypes" not in inputs.broadcast:
            return classifier_recipe(inputs, self, model)
        labels = inputs.shard.labels
        columns = {
            "towards": inputs.broadcast["prototypes"][labels],
            "known": inputs.broadcast["known"][labels].float(),
        }
        return classifier_recipe(inputs, self, model, losses=self.losses, columns=columns)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """CE + lambda mean_d (f(x) - C_y)^2, (B,), of classes that have a prototype."""
        z, logits = features_and_logits(model, batch["images"])
        entropy = F.cross_entropy(logits, batch["labels"], reduction="none")
        distance = (z - batch["towards"]).square().mean(1)
        return entropy + self.attraction * batch["known"] * distance


@dataclass(frozen=True, kw_only=True)
class FedProtoConfig(AnyModelsConfig):
    """FedProto's settings: those of its clients."""

    classifier: LocalFedProto = LocalFedProto()


def run(frame: Personal, config: FedProtoConfig) -> None:
    """Rounds of local training, of sending prototypes, and of averaging them (Algorithm 1)."""
    clients, memory, classes = frame.clients, frame.memory, frame.clients.run_spec.num_classes
    width = feature_width(clients.members[0].training, clients.run_spec)  # as check_widths has it
    memory["prototypes"] = torch.zeros(classes, width)
    memory["known"] = torch.zeros(classes, dtype=torch.int64)

    def check(update: Update, run_spec: RunSpec) -> None:
        sent(update, "prototypes", (classes, width))
        check_label_counts(update, run_spec)

    for chosen in frame.play():
        down = {name: memory[name] for name in ("prototypes", "known")}
        clients.train(only=chosen, broadcast=clients.to_send(down), remember=True, goes_to="client")
        updates = clients.map(send_prototypes, only=chosen, check=check)
        with frame.server.events.phase("fusion"):
            if updates:  # else all that took part were dropped
                average(memory, updates)


@torch.no_grad()
def send_prototypes(inputs: TaskInput) -> TaskOutput:
    """The mean features of the client's samples of each class, (classes, d); zeros of a class of
    which its label counts are 0."""
    config = inputs.record(LocalFedProto)
    shard, images = inputs.shard, inputs.shard.images.to(inputs.device)
    features = features_of(own_model(inputs), images, config.batch_size).cpu()
    total = torch.zeros(inputs.run_spec.num_classes, features.shape[1])
    total.index_add_(0, shard.labels, features)
    means = total / shard.label_counts.clamp(min=1)[:, None]
    return TaskOutput(tensors={"prototypes": means, "label_counts": shard.label_counts})


def average(memory: dict[str, Tensor], updates: list[Update]) -> None:
    """Sets each class's prototype to its mean over the samples of who sent it; one that nobody
    sent in this round stays."""
    counts = torch.stack([update.tensors["label_counts"] for update in updates]).double()
    features = torch.stack([update.tensors["prototypes"] for update in updates]).double()
    total = counts.sum(0)
    means = (counts[:, :, None] * features).sum(0) / total.clamp(min=1)[:, None]
    memory["prototypes"][total > 0] = means[total > 0].float()
    memory["known"][total > 0] = 1


def check_widths(config: FedProtoConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """As :func:`fl.methods.prototypes.assign_all`.

    Raises:
        UserError: also where architectures have features of several widths, whose means are none.
    """
    assigned = assign_all(config, num_clients, run_spec)
    trainings = dict.fromkeys(own.training for own in assigned)
    widths = {own.model: feature_width(own, run_spec) for own in trainings}
    if len(set(widths.values())) > 1:
        found = ", ".join(f"{name} {width}" for name, width in widths.items())
        raise UserError(f"fedproto averages features, which must have one width; got {found}")
    return assigned


@torch.no_grad()
def feature_width(config: Training, run_spec: RunSpec) -> int:
    """d, the number of features that enter the model's head."""
    assert isinstance(config, LocalFedProto)
    model = starting_classifier(config, run_spec).eval()
    return features_and_logits(model, run_spec.inputs.example(1))[0].shape[1]


METHOD = personal_method(
    "fedproto",
    FedProtoConfig,
    run,
    local={"classifier.attraction": LogUniform(0.1, 10.0)},
    assign=check_widths,
)
