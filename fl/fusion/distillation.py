"""Teachers and the fusion loss (Eqs. 5 to 7)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.federation import Batch
from fl.models.ensemble import Ensemble
from kernels.backends import fuses

KLReduction = Literal["batchmean", "mean"]
TeacherWeights = Literal["equal", "agreement"]


def agreement_weights(logits: Tensor) -> Tensor:
    """How far each teacher agrees with the others on each sample, (teachers, N), 0 to 1.

    ``w_k = sum_c min(p_kc, m_kc)``, where ``p_k`` are its probabilities and ``m_kc`` is the median
    of the others' for class c: who is sure of a class that most others exclude has weight 0. Below
    three teachers all weights are 1, since neither of two is the odd one out.

    Args:
        logits: (teachers, N, classes).
    """
    count = len(logits)
    if count < 3:
        return logits.new_ones(logits.shape[:2])
    probabilities = logits.softmax(2)
    ordered, order = probabilities.sort(dim=0)
    places = order.argsort(dim=0)
    # Without a teacher, those above it in the order move one place down.
    low, high = ((i + (places <= i).long()) for i in ((count - 2) // 2, (count - 1) // 2))
    median = (ordered.gather(0, low) + ordered.gather(0, high)) / 2
    return torch.minimum(probabilities, median).sum(2)


def agreed_logits(logits: Tensor) -> Tensor:
    """The teachers' mean logits, (N, classes), weighted by :func:`agreement_weights`; the plain
    mean of a sample on which no teacher agrees with the others.

    Args:
        logits: (teachers, N, classes).
    """
    weights = agreement_weights(logits)
    weights = torch.where(weights.sum(0) > 0, weights, torch.ones_like(weights))
    return (weights.unsqueeze(2) * logits).sum(0) / weights.sum(0).unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class FusionLoss:
    """Eq. 7: ``ce_weight * CE(student, label) + kd_weight * KL(teacher || student)``.

    The paper's form is (lambda, 1 - lambda); the released code's is (1, 1). At temperature 1,
    without a T squared factor. Batches hold ``images``, ``labels`` where ce_weight is not zero,
    and ``teacher_logits`` where kd_weight is not zero.
    """

    ce_weight: float
    kd_weight: float
    kl_reduction: KLReduction = "batchmean"
    """batchmean: per sample. mean: also divided by the classes, as in the released code."""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["images"])
        if self.ce_weight and logits.dim() == 2 and fuses(logits.device):
            return self._by_kernel(logits, batch)
        loss = logits.new_zeros(())
        if self.ce_weight:
            loss = loss + self.ce_weight * F.cross_entropy(logits, batch["labels"])
        if self.kd_weight:
            loss = loss + self.kd_weight * _kl(logits, batch["teacher_logits"], self.kl_reduction)
        return loss

    def _by_kernel(self, logits: Tensor, batch: Batch) -> Tensor:
        from kernels.triton_fused import distillation

        teacher = batch["teacher_logits"] if self.kd_weight else logits.detach()
        of_mean, kd = _divisor(logits, self.kl_reduction), self.kd_weight
        ce = self.ce_weight / len(logits)
        return distillation(logits, batch["labels"], teacher, ce, kd / of_mean)


class Weighing(nn.Module):
    """A model, and the weights of the two terms of its loss, which are learned with it.

    The papers state only that the weights are trainable. Ours are 1 / sigma^2 of Kendall et al.
    (CVPR 2018), whose loss does not fall by shrinking them to zero; they start as 1 and 1.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.log_variances = nn.Parameter(torch.zeros(2))

    def forward(self, images: Tensor) -> Tensor:
        """The model's logits."""
        return self.model(images)

    @property
    def betas(self) -> tuple[float, float]:
        """Weights of KD and CE."""
        kd, ce = (-self.log_variances.detach()).exp().tolist()
        return kd, ce


@dataclass(frozen=True, kw_only=True)
class LearnedFusionLoss:
    """Eq. 7 with learned weights: sum over KL and CE of exp(-s) L + s / 2, of a :class:`Weighing`
    model's log variances s."""

    kl_reduction: KLReduction = "batchmean"

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        if not isinstance(model, Weighing):
            raise TypeError(f"has no weights to learn: {type(model).__name__}")
        logits = model(batch["images"])
        kd = _kl(logits, batch["teacher_logits"], self.kl_reduction)
        terms = torch.stack([kd, F.cross_entropy(logits, batch["labels"])])
        return ((-model.log_variances).exp() * terms + model.log_variances / 2).sum()


def _kl(logits: Tensor, teacher: Tensor, reduction: KLReduction) -> Tensor:
    kl = F.kl_div(
        F.log_softmax(logits, dim=1),
        F.log_softmax(teacher, dim=1),
        log_target=True,
        reduction="sum",
    )
    # Divided here, since torch warns that it will change the meaning of its own "mean".
    return kl / _divisor(logits, reduction)


def _divisor(logits: Tensor, reduction: KLReduction) -> int:
    return len(logits) if reduction == "batchmean" else logits.numel()


@dataclass(frozen=True)
class EachMember:
    """The sum of a loss over an ensemble's members, so that one fit trains each independently."""

    loss: FusionLoss

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        if not isinstance(model, Ensemble):
            raise TypeError(f"not an ensemble: {type(model).__name__}")
        losses = [self.loss(member, batch) for member in model.members]
        return sum(losses[1:], start=losses[0])
