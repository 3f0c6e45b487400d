"""Mixup (Zhang et al., ICLR 2018): images between two, whose targets are between theirs."""

import torch
from torch import Tensor

from fl.federation import Batch
from fl.fusion.voting import SMALLEST


def with_mixup(lessons: Batch, share: float, generator: torch.Generator) -> Batch:
    """The lessons, and behind them mixtures of two of them at a time.

    With l ~ U(0, 1), x = l x_i + (1 - l) x_j and t = l t_i + (1 - l) t_j (their Eq. 1, alpha = 1);
    i and j are drawn among all lessons.

    Args:
        lessons: ``images`` (N, C, H, W), and targets t as ``teacher_logits`` (N, classes), log t.
        share: round(share N) mixtures; 0 gives the lessons as they are.
        generator: on the CPU, for pairs and weights.
    """
    images, answers = lessons["images"], lessons["teacher_logits"]
    count = round(share * len(images))
    first, second = torch.randint(len(images), (2, count), generator=generator).to(images.device)
    weight = torch.rand(count, generator=generator).to(images)

    def between(values: Tensor) -> Tensor:
        shaped = weight.view(-1, *[1] * (values.dim() - 1))
        return shaped * values[first] + (1 - shaped) * values[second]

    target = between(answers.softmax(1)).clamp(min=SMALLEST).log()
    return {
        "images": torch.cat([images, between(images)]),
        "teacher_logits": torch.cat([answers, target]),
    }
