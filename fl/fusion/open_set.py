"""What FedMHO-Open adds to FedMHO's fusion: trust in labels, votes, open-set samples, mixup.

The equations are numbered as in docs/methods/fedmho-open.md.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.federation import Batch
from fl.models.architectures.cvaes import Decoder

SMALLEST = 1e-9
"""Of a vote, where it is divided by or its logarithm is taken."""
MOTION = 6
"""Numbers of the code that move an image: angle, two scales, shear, two shifts."""
SMALLEST_SCALE = 1e-6
"""The smallest pixel, and the distance of the largest from 1, where its logit is taken."""


def label_trust(held: np.ndarray, drawn: np.ndarray, half: float) -> Tensor:
    """r (classes,), Eq. 1: how far decoders' labels are believed.

    It is M / (M + min(N, max(M, ``half``))), where classifier clients' counts (clients, classes)
    sum to N and the decoders' clients' to M.
    """
    known = drawn.sum(0)
    against = np.minimum(held.sum(0), np.maximum(known, half))
    return torch.from_numpy(known / np.maximum(against + known, SMALLEST)).float()


def voting_shares(held: np.ndarray, trust: Tensor) -> Tensor:
    """(1 - r_c) n_kc / N_c of Eq. 1, (clients, classes): what a classifier's probability counts."""
    counts = torch.from_numpy(held)
    return (1 - trust) * counts / counts.sum(0).clamp(min=1)


def elected(votes: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of all votes (N, classes) as shares q, and how much was voted, (N,): Eq. 1.

    Where nobody votes all classes are alike.
    """
    total = votes + SMALLEST
    evidence = total.sum(1)
    return total / evidence.unsqueeze(1), evidence


def trusted_labels(labels: Tensor, shares: Tensor, trust: Tensor) -> Tensor:
    """t (N, classes), Eq. 2: r_y e_y + (1 - r_y) q, of labels y (N,) and shares q (N, classes)."""
    believed = trust[labels].unsqueeze(1)
    return believed * F.one_hot(labels, len(trust)) + (1 - believed) * shares


class VariedDecoder(Decoder):
    """A decoder with a longer code, all of it N(0, I): z; numbers that mix labels; `MOTION`.

    So the caller draws samples as of any decoder, and each follows from its code alone.
    """

    def __init__(
        self, decoder: Decoder, *, warp: float, spread: float = 1.0, mixing: float | None = None
    ) -> None:
        """``warp``: strength of the motion; ``spread``: factor on z; ``mixing``: kappa of
        softmax(kappa g), g ~ N(0, I), which takes the label's place. None: the label is kept."""
        mixed = 0 if mixing is None else decoder.num_classes
        super().__init__(decoder.layers, decoder.latent + mixed + MOTION, decoder.num_classes)
        self._sizes = (decoder.latent, mixed, MOTION)
        self.warp, self.spread, self.mixing = warp, spread, mixing

    def forward(self, z: Tensor, onehot: Tensor) -> Tensor:
        """Image logits (B, C, H, W) of the code z (B, latent) and labels (B, num_classes)."""
        own, blend, motion = z.split(self._sizes, dim=1)
        label = onehot if self.mixing is None else (self.mixing * blend).softmax(1)
        logits = super().forward(self.spread * own, label)
        if not self.warp:
            return logits
        return torch.logit(moved(logits.sigmoid(), motion, self.warp), eps=SMALLEST_SCALE)


def moved(images: Tensor, motion: Tensor, strength: float) -> Tensor:
    """The images (B, C, H, W) rotated, scaled, sheared and shifted, each by its own numbers.

    With u = 2 Phi(motion) - 1, uniform on [-1, 1], and the strength as factor: 12 u degrees, sides
    times exp(0.15 u), shear 0.15 u, and shifts of 0.05 u of a side. What comes in from outside is
    the border's pixel.

    Args:
        images: to move.
        motion: (B, `MOTION`), standard normal.
        strength: 0 leaves the images as they are.
    """
    u = (2 * torch.special.ndtr(motion) - 1) * strength
    angle = u[:, 0] * math.radians(12)
    wide, high, shear = (u[:, 1:4] * 0.15).unbind(1)
    right, down = (u[:, 4:] * 0.1).unbind(1)  # a side is 2 long
    cos, sin = angle.cos(), angle.sin()
    rows = (
        torch.stack([wide.exp() * cos, wide.exp() * (shear * cos - sin), right], 1),
        torch.stack([high.exp() * sin, high.exp() * (shear * sin + cos), down], 1),
    )
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def open_quotas(held: np.ndarray, trust: Tensor, total: float) -> list[int]:
    """m_c of Eq. 4: how many open-set samples are kept of each class, ``total`` together. The less
    its decoders' labels are believed the more, so most of what no decoder has learned."""
    need = (1 - trust.double()) * torch.from_numpy(held.sum(0) > 0)
    return (total * need / need.sum().clamp(min=SMALLEST)).long().tolist()


def best_of_each_class(shares: Tensor, evidence: Tensor, quotas: Sequence[int]) -> Tensor:
    """Indices, ascending, of the samples with the most votes for a class and the fewest for others.

    Eq. 4: of class c those ``quotas[c]`` with the highest v_c q_c = evidence q_c^2. A sample that
    is among the best of two classes is there once.

    Args:
        shares: (N, classes), q.
        evidence: (N,).
        quotas: for each class, N at most.
    """
    worth = evidence.unsqueeze(1) * shares**2
    best = [worth[:, c].topk(quota).indices for c, quota in enumerate(quotas)]
    return torch.cat(best).unique()


def with_mixup(lessons: Batch, share: float, generator: torch.Generator) -> Batch:
    """The lessons, and behind them mixtures of two of them at a time.

    Eq. 5, mixup (Zhang et al., ICLR 2018, with alpha = 1): x = l x_i + (1 - l) x_j and
    t = l t_i + (1 - l) t_j with l ~ U(0, 1); i and j are drawn among all lessons.

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
