"""MOON (Li et al., CVPR 2021): FedAvg whose clients keep their features near the global model's.

A client's loss has a term more, which compares its features of an image with those by the model
that the server sent, to be like them, and with those by its own model of the round before, to be
unlike them. In the first round there is no round before, so it is FedAvg's.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import NotNegative, Positive
from fl.federation import Batch, TaskInput
from fl.methods.averaging import AveragingConfig, averaging_method
from fl.methods.method import LogUniform
from fl.models.registry import copied
from fl.training.classifier import ClassifierConfig, classifier_recipe, received_classifier
from fl.training.features import features_and_logits, features_of
from fl.training.personal import AfterFedAvg, last_model
from fl.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class LocalMoon(AfterFedAvg, ClassifierConfig):
    """Local training of a MOON client: a classifier's, with the contrastive term."""

    needs_head = "moon"

    mu: NotNegative = 1.0
    """Weight of the contrastive term (FedAF's paper: 1); 0: nothing is added."""
    temperature: Positive = 0.5
    """Temperature tau of the contrastive term; the authors' code has 0.5."""

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains by :meth:`losses`; without the term if the client remembers no model."""
        model = received_classifier(inputs, self)
        if not self.mu:
            return classifier_recipe(inputs, self, model)
        sent, last = copied(model), last_model(inputs, self)

        def asked(images: Tensor) -> Batch:
            towards = features_of(sent, images, self.batch_size)
            away = torch.zeros_like(towards)
            if last is not None:
                away = features_of(last, images, self.batch_size)
            contrasted = torch.full((len(images),), float(last is not None), device=images.device)
            return {"towards": towards, "away": away, "contrasted": contrasted}

        return classifier_recipe(inputs, self, model, losses=self.losses, asked=asked)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Eq. 4, (B,): CE(f_w(x), y) + mu * :func:`contrast`."""
        z, logits = features_and_logits(model, batch["images"])
        entropy = F.cross_entropy(logits, batch["labels"], reduction="none")
        term = contrast(z, batch["towards"], batch["away"], self.temperature)
        return entropy + self.mu * batch["contrasted"] * term


@dataclass(frozen=True, kw_only=True)
class MoonConfig(AveragingConfig):
    """MOON's settings: FedAvg's, with a contrastive term."""

    classifier: LocalMoon = LocalMoon()


def contrast(z: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """Eq. 3, (B,): -log(e^(a/tau) / (e^(a/tau) + e^(b/tau))), with the cosines a of ``z`` and
    ``towards`` and b of ``z`` and ``away``, all (B, d)."""
    cosines = [F.cosine_similarity(z, other, dim=1) for other in (towards, away)]
    first = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    return F.cross_entropy(torch.stack(cosines, dim=1) / temperature, first, reduction="none")


METHOD = averaging_method("moon", MoonConfig, local={"classifier.mu": LogUniform(0.1, 10.0)})
