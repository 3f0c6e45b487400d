"""Co-Boosting (Dai et al., ICLR 2024): DENSE with harder samples and a better ensemble.

The generator makes samples on which the ensemble is unsure and the global model disagrees; the
ensemble weighs its members so that it is right on the pool; and each batch is moved a little in a
direction that changes the ensemble's answer, just before the global model learns from it.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import NotNegative, Positive
from fl.federation import Batch
from fl.fusion.inversion import DistillationConfig, InversionLoss, Pool, invert
from fl.json_files import JsonObject
from fl.methods import dense
from fl.methods.dense import Lessons, PooledConfig
from fl.methods.method import Choice, LogUniform, Uniform
from fl.models.ensemble import Ensemble, weighted_mean
from fl.seeding import torch_generator
from fl.training.losses import divergences
from fl.training.steps import on_device

CLIP = 10.0
"""Norm to which the gradients of generator and global model are cut, each by itself: the
global model's unless ``kd.clip`` says otherwise."""
ADV_TEMPERATURE = 3.0
"""Temperature at which generator and global model compete."""
PERTURBATION_TEMPERATURE = 4.0
"""Temperature of the answers that the perturbation changes."""
ROWS = 256
"""Images that are perturbed together."""


@dataclass(frozen=True, kw_only=True)
class CoBoostingConfig(PooledConfig):
    """Co-Boosting's own settings; ``ce`` counts each sample times 1 minus its probability."""

    perturbation: NotNegative = 8 / 255
    """Step by which pixels move before the global model learns from them."""
    weight_step: NotNegative = 0.01
    """First step of the ensemble's weights."""
    weight_decay: Positive = 0.99
    """Factor on that step from epoch to epoch."""
    kd: DistillationConfig = DistillationConfig(
        lr=0.01, temperature=4.0, weight_decay=1e-4, schedule="cosine", clip=CLIP
    )


class BoostingLessons(Lessons):
    """Each epoch's data: the pool grows by hard images, the ensemble is weighed, and the student
    learns the whole pool, perturbed."""

    _config: CoBoostingConfig

    @property
    def memory(self) -> dict[str, Tensor]:
        """The pool's columns, and the ensemble's weights."""
        return {**self.columns, "weights": self._teacher.weights}

    @memory.setter
    def memory(self, memory: dict[str, Tensor]) -> None:
        self._teacher.weights.copy_(memory["weights"])
        self.columns = {n: column for n, column in memory.items() if n != "weights"}

    def described(self, **figures: Any) -> JsonObject:
        """With the ensemble's weights."""
        return super().described(ensemble_weights=self._teacher.weights.tolist(), **figures)

    def epoch(self, number: int) -> Batch:
        """Steps 1 to 4 of an epoch: all but the student's training."""
        config, events = self._config, self._server.events
        with events.phase("synthesis"):
            images, labels = invert(
                hard_sample_loss(self._teacher, self._student, config),
                self._server.run_spec,
                config.inversion,
                epoch=number,
                device=self._server.device,
                clip=CLIP,
            )
            with torch.no_grad():
                each = self._teacher.each(images).transpose(0, 1)
            self.add(images=images, labels=labels, member_logits=each)
        self._student.requires_grad_(True)
        if number > 1:
            reweigh(self._teacher, self, config, number)
        return self._perturbed_pool(number)

    def _perturbed_pool(self, epoch: int) -> Batch:
        """The pool's images, perturbed, and the ensemble's logits for them."""
        stream = torch_generator(self._server.run_spec.seed, f"perturbation/{epoch}")
        size = self._config.perturbation
        parts = self.columns["images"].split(ROWS)
        moved = [perturbed(rows, self._teacher, size, stream) for rows in parts]
        with torch.no_grad():
            logits = [self._teacher(rows) for rows in moved]
        return {"images": torch.cat(moved), "teacher_logits": torch.cat(logits)}


def hard_sample_loss(
    teacher: Ensemble, student: nn.Module, config: CoBoostingConfig
) -> InversionLoss:
    """mean((1 - p_y) CE) - T^2 mean KL(ensemble || student) of images; p_y has no gradient."""
    student.eval().requires_grad_(False)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        wanted = teacher(images)
        cross_entropy = F.cross_entropy(wanted, labels, reduction="none")
        hardness = 1 - (-cross_entropy.detach()).exp()
        value = config.ce * (hardness * cross_entropy).mean()
        if config.adv:
            apart = divergences(wanted, student(images), ADV_TEMPERATURE).mean()
            value = value - config.adv * apart
        return value

    return loss


def reweigh(teacher: Ensemble, pool: Pool, config: CoBoostingConfig, epoch: int) -> None:
    """Moves each member's weight by a step towards less cross-entropy, batch by batch."""
    step = config.weight_step * config.weight_decay ** (epoch - 1)
    for batch in pool.batches("weights/order", epoch, config.kd.batch_size):
        weights = teacher.weights.clone().requires_grad_()
        logits = weighted_mean(batch["member_logits"].transpose(0, 1), weights)
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, batch["labels"]), weights)
        moved = (teacher.weights - step * gradient.sign()).clamp(0, 1)
        # Where one member alone is left its gradient is 0 but for rounding, which has a sign.
        teacher.weights.copy_(torch.where(moved.any(), moved, teacher.weights))


def perturbed(images: Tensor, teacher: Ensemble, size: float, stream: torch.Generator) -> Tensor:
    """x + size sign(grad_x <u, softmax(ensemble(x) / T)>), u ~ U(-1, 1) for each sample, class."""
    x = images.detach().requires_grad_()
    answers = (teacher(x) / PERTURBATION_TEMPERATURE).softmax(1)
    (drawn,) = on_device([torch.rand(answers.shape, generator=stream)], x.device)
    direction = 2 * drawn - 1
    (gradient,) = torch.autograd.grad((direction * answers).sum(), x)
    return images + size * gradient.sign()


METHOD = replace(
    dense.METHOD,
    name="co-boosting",
    config=CoBoostingConfig,
    run=partial(dense.run, kind=BoostingLessons),
    spaces=replace(
        dense.SPACES,
        server={
            "adv": Uniform(0.1, 2.0),
            "perturbation": Uniform(0.0, 16 / 255),
            "weight_step": LogUniform(1e-3, 1e-1),
            "inversion.lr": LogUniform(1e-4, 1e-2),
            "kd.lr": LogUniform(1e-3, 1e-1),
            "kd.temperature": Choice((1.0, 4.0, 20.0)),
        },
    ),
)
