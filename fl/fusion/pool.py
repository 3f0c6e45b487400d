"""Distillation on a pool of images that grows from epoch to epoch: DENSE's and Co-Boosting's."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from fl.bounds import Count, NotNegative, Positive, Settings, Within
from fl.federation import Batch
from fl.fusion.distillation import kl_to_teacher
from fl.fusion.fit import FitConfig
from fl.json_values import JsonObject
from fl.seeding import torch_generator
from fl.training.optimizers import SGD


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(Settings):
    """The global model's training on the pool: SGD, one pass per epoch."""

    epochs: Count = 30
    """Epochs; each makes one batch of images."""
    lr: Positive = 0.01
    """Learning rate of SGD."""
    momentum: Annotated[float, Within(0, 1, "[)")] = 0.9
    """Momentum of SGD."""
    weight_decay: NotNegative = 0.0
    """Weight decay of SGD."""
    batch_size: Count = 16
    """Samples per step."""
    temperature: Positive = 20.0
    """Temperature T of the distillation, whose loss is multiplied by T squared."""

    def fit_config(self, *, cosine: bool = False, clip: float | None = None) -> "PoolFitConfig":
        """The settings of the server's fit.

        With ``cosine`` the rate falls from epoch to epoch; ``clip`` is the norm to which the
        student's gradient is cut.
        """
        return PoolFitConfig(
            epochs=self.epochs,
            lr=self.lr,
            optimizer="sgd",
            momentum=self.momentum,
            batch_size=self.batch_size,
            schedule="cosine" if cosine else "constant",
            clip=clip,
            weight_decay=self.weight_decay,
        )


@dataclass(frozen=True, kw_only=True)
class PoolFitConfig(FitConfig):
    """A fit by SGD with weight decay, whose rate is the same for all steps of an epoch."""

    weight_decay: float = 0.0

    def make_optimizer(self) -> SGD:
        """The optimiser that these settings name."""
        return SGD(self.lr, self.momentum, self.weight_decay)

    def total_steps(self, rows: int) -> int:
        """Steps of the whole fit on a pool that gains so many samples in each epoch."""
        sizes = (rows * epoch for epoch in range(1, self.epochs + 1))
        return sum(-(-size // self.batch_size) for size in sizes)

    def rate(self, epoch: int, passed: float) -> float:
        """Learning rate in an epoch."""
        return super().rate(epoch, 0.0)


@dataclass(frozen=True)
class DistillationLoss:
    """T^2 KL(teacher || student) of ``images`` and ``teacher_logits``, mean over the batch."""

    temperature: float
    one_pass: ClassVar[bool] = True
    """See :class:`fl.fusion.gradients.Gradients`."""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        student = model(batch["images"])
        return kl_to_teacher(student, batch["teacher_logits"], self.temperature).mean()


class Pool:
    """All images made so far, with labels and whatever else a method adds for each."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.columns: dict[str, Tensor] = {}
        """Rows of one length, by name; ``images`` and ``labels`` are two."""

    def add(self, **rows: Tensor) -> None:
        """Appends rows to every column."""
        for name, new in rows.items():
            old = self.columns.get(name)
            self.columns[name] = new if old is None else torch.cat([old.to(new.device), new])

    def batches(self, purpose: str, epoch: int, size: int) -> Iterator[dict[str, Tensor]]:
        """All rows once, shuffled by (seed, purpose, epoch)."""
        order = torch_generator(self._seed, f"{purpose}/{epoch}")
        labels = self.columns["labels"]
        for rows in torch.randperm(len(labels), generator=order).to(labels.device).split(size):
            yield {name: column[rows] for name, column in self.columns.items()}

    def told(self, **figures: Any) -> JsonObject:
        """Fields of an :class:`fl.server.Outcome` about the images; none is filtered out."""
        count = len(self.columns["labels"])
        synthetic = {name: self.columns[name] for name in ("images", "labels")}
        return {
            "synthetic": {**synthetic, "kept": torch.arange(count)},
            "figures": {"synthetic": {"generated": count, "kept": count}, **figures},
        }
