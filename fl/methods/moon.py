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
from fl.exchange import load_prefixed
from fl.federation import Batch, RunSpec, Task, TaskInput
from fl.methods.averaging import AveragingConfig, run
from fl.methods.method import Method
from fl.methods.prototypes import LOCAL, assign
from fl.models import copied
from fl.spaces import LogUniform, Spaces
from fl.training.classifier import (
    ClassifierConfig,
    classifier_recipe,
    plain,
    received_classifier,
    starting_classifier,
)
from fl.training.features import check_head, features_and_logits
from fl.training.recipe import Recipe
from fl.training.task import task_of


@dataclass(frozen=True, kw_only=True)
class LocalMoon(ClassifierConfig):
    """Local training of a MOON client: a classifier's, with the contrastive term."""

    mu: NotNegative = 1.0
    """Weight of the contrastive term (FedAF's paper: 1); 0: nothing is added."""
    temperature: Positive = 0.5
    """Temperature tau of the contrastive term; the authors' code has 0.5."""

    @property
    def first_round(self) -> ClassifierConfig:
        """FedAvg's record: there is no model of the round before."""
        return plain(self)

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return train_contrasting

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` for a model without a head too, whose features are contrasted."""
        super().check(run_spec)
        check_head("moon", self.model, self.width, run_spec)


@dataclass(frozen=True, kw_only=True)
class MoonConfig(AveragingConfig):
    """MOON's settings: FedAvg's, with a contrastive term."""

    classifier: LocalMoon = LocalMoon()


@task_of
def train_contrasting(inputs: TaskInput) -> Recipe:
    """Trains with the contrastive term; a client that remembers no model trains without it."""
    config = inputs.client.training
    assert isinstance(config, LocalMoon)
    model = received_classifier(inputs, config)
    if not config.mu:
        return classifier_recipe(inputs, config, model)
    images = inputs.shard.images.to(inputs.device)
    towards = frozen_features(copied(model), images, config.batch_size)
    away, contrasted = torch.zeros_like(towards), torch.zeros(len(images))
    if inputs.remembered:
        own = starting_classifier(config, inputs.run_spec)
        load_prefixed(own, inputs.remembered, "classifier", sender="the client's memory")
        away = frozen_features(own.to(inputs.device), images, config.batch_size)
        contrasted += 1

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        z, logits = features_and_logits(model, batch["images"])
        entropy = F.cross_entropy(logits, batch["labels"], reduction="none")
        term = contrast(z, batch["towards"], batch["away"], config.temperature)
        return entropy + config.mu * batch["contrasted"] * term  # Eq. 4

    columns = {"towards": towards, "away": away, "contrasted": contrasted}
    return classifier_recipe(inputs, config, model, losses=losses, columns=columns)


def contrast(z: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """Eq. 3, (B,): -log(e^(a/tau) / (e^(a/tau) + e^(b/tau))), with the cosines a of ``z`` and
    ``towards`` and b of ``z`` and ``away``, all (B, d)."""
    cosines = [F.cosine_similarity(z, other, dim=1) for other in (towards, away)]
    first = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    return F.cross_entropy(torch.stack(cosines, dim=1) / temperature, first, reduction="none")


@torch.no_grad()
def frozen_features(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    """The model's features of each image in eval mode, (N, d): the same in every epoch."""
    model.eval()
    return torch.cat([features_and_logits(model, part)[0] for part in images.split(batch_size)])


METHOD = Method(
    name="moon",
    config=MoonConfig,
    assign=assign,
    run=run,
    one_shot=False,
    spaces=Spaces(local={**LOCAL, "classifier.mu": LogUniform(0.1, 10.0)}),
)
