"""Local training of a classifier with one class more, the unknown (FedOV).

Its samples are made of the client's own images: destroyed ones, and the same moved to where the
classifier takes them for known.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, NotNegative
from fl.errors import UserError
from fl.federation import Batch, RunSpec, Task, TaskInput
from fl.models.shapes import AnyBatchNorm
from fl.training.classifier import ClassifierConfig, classifier_recipe, received_classifier
from fl.training.destroying import DRAWS, destroyed
from fl.training.epochs import epochs_of
from fl.training.recipe import Recipe
from fl.training.task import task_of


@dataclass(frozen=True, kw_only=True)
class LocalFedOV(ClassifierConfig):
    """Local training of a FedOV client: a classifier's with a class more.

    The released code takes 200 epochs of Adam at 1e-3 with batches of 64.
    """

    second: NotNegative = 1.0
    """Weight of CE(unknown) of a sample's logits without its own class, which makes the unknown the
    second guess (the released code: 1)."""
    attack_steps: Count = 5
    """Steps that move an outlier to where it is taken for known (the released code: 5)."""
    attack_step: NotNegative = 0.002
    """Move of each pixel in such a step (the released code: 0.002)."""

    def check_further(self) -> None:
        """Refuses held out samples, of which no outliers are drawn."""
        if self.validation:
            raise UserError("validation does not go with fedov")

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return train_open

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """CE(x, y) + CE(x without y, unknown) + CE(x', unknown) + CE(x'', unknown), (B,), with the
        outliers x' and x'' of :func:`fl.training.destroying.destroyed` and :meth:`attacked`."""
        outliers = destroyed(batch["images"], batch["noise"])
        moved = self.attacked(model, outliers)
        logits, *others = answers(model, batch["images"], outliers, moved)
        labels, unknown = batch["labels"], torch.full_like(batch["labels"], logits.shape[1] - 1)
        without = logits - 10_000 * F.one_hot(labels, logits.shape[1])
        second = F.cross_entropy(without, unknown, reduction="none")
        loss = F.cross_entropy(logits, labels, reduction="none") + self.second * second
        for other in others:
            loss = loss + F.cross_entropy(other, unknown, reduction="none")
        return loss

    def attacked(self, model: nn.Module, outliers: Tensor) -> Tensor:
        """x + s sign(grad_x CE(x, unknown)), so many times, (B, C, H, W)."""
        trains = model.training
        model.train(trains and not _has_norm(model))  # outliers alone would be its statistics
        x = outliers
        for _ in range(self.attack_steps):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                certainty = model(x).log_softmax(1)[:, -1].sum()
                (gradient,) = torch.autograd.grad(certainty, x)
            x = x - self.attack_step * gradient.sign()
        model.train(trains)
        return x.detach()

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` if the classifier cannot take such samples, or they are no images."""
        assert run_spec.image_shape
        super().check(run_spec)

    def answered(self, run_spec: RunSpec) -> RunSpec:
        """With the unknown class, the last one."""
        return replace(run_spec, num_classes=run_spec.num_classes + 1)


@task_of
def train_open(inputs: TaskInput) -> Recipe:
    """Trains a classifier with the unknown class; each step draws the numbers of its outliers."""
    config = inputs.client.training
    assert isinstance(config, LocalFedOV)
    inputs = replace(inputs, run_spec=config.answered(inputs.run_spec))
    model = received_classifier(inputs, config)
    recipe = classifier_recipe(inputs, config, model, losses=config.losses)
    return replace(recipe, epochs=epochs_of(inputs, config, model, latent=DRAWS))


def answers(model: nn.Module, *parts: Tensor) -> tuple[Tensor, ...]:
    """The logits of each part, (B, classes) of (B, C, H, W); in one pass where BatchNorm has to see
    known and unknown samples together, as the authors say it must."""
    if _has_norm(model):
        return model(torch.cat(parts)).split(len(parts[0]))
    return tuple(map(model, parts))


def _has_norm(model: nn.Module) -> bool:
    return any(isinstance(layer, AnyBatchNorm) for layer in model.modules())
