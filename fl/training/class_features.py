"""Local training drawn to the mean features of each class, which clients send (FedProto)."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import NotNegative
from fl.federation import Batch, RunSpec, TaskInput, TaskOutput, Training
from fl.training.classifier import classifier_recipe, starting_classifier
from fl.training.features import check_head, features_and_logits, features_of
from fl.training.personal import PersonalTraining, own_model, personal_model
from fl.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class LocalFedProto(PersonalTraining):
    """Local training of a FedProto client: a classifier's, drawn to the global prototypes."""

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

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` for a model without a head too, whose input the features are."""
        super().check(run_spec)
        check_head("fedproto", self.model, self.width, run_spec)


@torch.no_grad()
def feature_width(config: Training, run_spec: RunSpec) -> int:
    """d, the number of features that enter the model's head."""
    assert isinstance(config, LocalFedProto)
    model = starting_classifier(config, run_spec).eval()
    return features_and_logits(model, run_spec.inputs.zeros(1))[0].shape[1]


@torch.no_grad()
def send_prototypes(inputs: TaskInput) -> TaskOutput:
    """The mean features of the client's samples of each class, (classes, d); zeros of a class of
    which its label counts are 0."""
    config = inputs.client.training
    assert isinstance(config, LocalFedProto)
    shard, images = inputs.shard, inputs.shard.images.to(inputs.device)
    features = features_of(own_model(inputs), images, config.batch_size).cpu()
    total = torch.zeros(inputs.run_spec.num_classes, features.shape[1])
    total.index_add_(0, shard.labels, features)
    means = total / shard.label_counts.clamp(min=1)[:, None]
    return TaskOutput(tensors={"prototypes": means, "label_counts": shard.label_counts})
