"""Distillation on a pool of images that grows from epoch to epoch: DENSE's and Co-Boosting's.

It is no :meth:`fl.server.Server.fit`, since between two epochs the global model itself decides
which images come next, while its optimiser goes on.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim

from fl.errors import UserError
from fl.fusion.distillation import kl_to_teacher
from fl.seeding import torch_generator, torch_seeded
from fl.server import Evaluation, Server
from fl.validate import at_least, positive


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """The global model's training on the pool: SGD, one pass per epoch."""

    epochs: int = 30
    """Epochs; each makes one batch of images."""
    lr: float = 0.01
    """Learning rate of SGD."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 0.0
    """Weight decay of SGD."""
    batch_size: int = 16
    """Samples per step."""
    temperature: float = 20.0
    """Temperature T of the distillation, whose loss is multiplied by T squared."""

    def __post_init__(self) -> None:
        at_least("kd.epochs", self.epochs, 1)
        positive("kd.lr", self.lr)
        at_least("kd.batch_size", self.batch_size, 1)
        positive("kd.temperature", self.temperature)
        if not 0 <= self.momentum < 1:
            raise UserError(f"kd.momentum must be in [0, 1), got {self.momentum}")
        if self.weight_decay < 0:
            raise UserError(f"kd.weight_decay must not be negative, got {self.weight_decay}")

    def optimizer(self, model: nn.Module) -> optim.SGD:
        """The optimiser of ``model``, kept over all epochs."""
        return optim.SGD(
            model.parameters(),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )


class Pool:
    """All images made so far, with what is known of each."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._columns: dict[str, Tensor] = {}

    def add(self, **rows: Tensor) -> None:
        """Appends rows to every column, of which ``images`` and ``labels`` are two."""
        for name, new in rows.items():
            old = self._columns.get(name)
            self._columns[name] = new if old is None else torch.cat([old, new])

    def batches(self, purpose: str, epoch: int, size: int) -> Iterator[dict[str, Tensor]]:
        """All rows once, shuffled by (seed, purpose, epoch)."""
        order = torch_generator(self._seed, f"{purpose}/{epoch}")
        labels = self._columns["labels"]
        for rows in torch.randperm(len(labels), generator=order).to(labels.device).split(size):
            yield {name: column[rows] for name, column in self._columns.items()}

    def told(self, **figures: Any) -> dict[str, Any]:
        """What an :class:`fl.server.Outcome` says of the images; none is filtered out."""
        count = len(self._columns["labels"])
        synthetic = {name: self._columns[name] for name in ("images", "labels")}
        return {
            "synthetic": {**synthetic, "kept": torch.arange(count)},
            "figures": {"synthetic": {"generated": count, "kept": count}, **figures},
        }


def distil_epoch(
    student: nn.Module,
    lessons: Iterable[tuple[Tensor, Tensor]],
    optimizer: optim.Optimizer,
    config: DistillationConfig,
    server: Server,
    epoch: int,
) -> Evaluation:
    """Trains ``student`` on batches of images and the teacher's logits; tests and tells of it."""
    losses = []
    student.train().requires_grad_(True)
    with torch_seeded(server.problem.seed, f"fusion/dropout/{epoch}"):
        for images, wanted in lessons:
            loss = kl_to_teacher(student(images), wanted, config.temperature).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    found = server.evaluate(student.eval())
    server.events.emit(
        "epoch",
        stage="fusion",
        epoch=epoch,
        epochs=config.epochs,
        loss=torch.stack(losses).mean().item(),
        accuracy=found.accuracy,
    )
    return found
