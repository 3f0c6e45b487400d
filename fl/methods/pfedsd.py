"""pFedSD (Jin et al., TPDS 2022): FedAvg whose clients are taught by their own last model.

A client starts from the model that the server sent and trains on its labels and on the soft labels
of its own model of the round in which it last took part. That first time there is none, so the
first round is FedAvg's. Each client is scored by its own last model.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import NotNegative, Positive
from fl.federation import Batch, TaskInput
from fl.methods.method import LogUniform
from fl.methods.personal import Personal, PersonalConfig, personal_method
from fl.training.classifier import classifier_recipe, received_classifier
from fl.training.losses import divergences, logits_of
from fl.training.personal import PersonalTraining, last_model
from fl.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class LocalPFedSD(PersonalTraining):
    """Local training of a pFedSD client: a classifier's, taught by its last model."""

    weight: NotNegative = 1.0
    """Weight lambda of the client's own teacher; the authors' code has 1."""
    temperature: Positive = 1.0
    """Temperature tau of the soft labels; the authors' code has 1."""

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains by :meth:`losses`; untaught if the client remembers no model."""
        model = received_classifier(inputs, self)
        if not self.weight:
            return classifier_recipe(inputs, self, model)
        last = last_model(inputs, self)

        def asked(images: Tensor) -> Batch:
            taught = torch.full((len(images),), float(last is not None), device=images.device)
            if last is None:
                shape = len(images), inputs.run_spec.num_classes
                return {"soft": torch.zeros(shape, device=images.device), "taught": taught}
            return {"soft": logits_of(last, images, self.batch_size), "taught": taught}

        return classifier_recipe(inputs, self, model, losses=self.losses, asked=asked)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """CE + lambda tau^2 KL(soft labels of the last model || the client's own), (B,)."""
        logits = model(batch["images"])
        entropy = F.cross_entropy(logits, batch["labels"], reduction="none")
        distance = divergences(batch["soft"], logits, self.temperature)
        return entropy + self.weight * batch["taught"] * distance


@dataclass(frozen=True, kw_only=True)
class PFedSDConfig(PersonalConfig):
    """pFedSD's settings: those of its clients."""

    classifier: LocalPFedSD = LocalPFedSD()


def run(frame: Personal, config: PFedSDConfig) -> None:
    """w = 1/K sum_k w_k, round by round, over clients that remember their last model."""
    for _ in frame.average(remember=True):
        pass


METHOD = personal_method(
    "pfedsd", PFedSDConfig, run, local={"classifier.weight": LogUniform(0.1, 10.0)}
)
