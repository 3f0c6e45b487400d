"""Votes on a sample's class: each voter's by its share of the class, where it knows such images.

A classifier answers any image with one of its classes. Its energy (Liu et al., NeurIPS 2020), the
logarithm of the sum of its exponentiated logits, is high on images such as it has learned from and
low on others; the server reads both levels off samples whose labels it knows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.models.cvae import Decoder

# Decoders whose images vary more than a client's own: moved, and of mixed labels.

MOTION = 6
"""Numbers of the code that move an image: angle, two scales, shear, two shifts."""
SMALLEST_SCALE = 1e-6
"""The smallest pixel, and the distance of the largest from 1, where its logit is taken."""


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


SMALLEST = 1e-9
"""Of a vote, where it is divided by or its logarithm is taken."""
LEAST_APART = 1.0
"""The least distance of a voter's two energies."""


@dataclass(frozen=True)
class Voter:
    """What a classifier's logits are worth."""

    share: Tensor
    """(classes,): its part of all clients' samples of each class."""
    known: Tensor
    """(classes,) bool: those on which its energy is taken."""
    correction: Tensor
    """(classes,): what is taken off its log probabilities."""
    levels: tuple[float, float] | None = None
    """Its energies on images of classes that it does not know, and of those that it knows. None:
    its votes count whatever the image."""

    def gate(self, logits: Tensor) -> Tensor:
        """How far it knows such images, (N,), of its logits (N, classes): Eq. 1 of
        docs/methods/fedmho-open.md,
        sigmoid(4 (E - (high + low) / 2) / (high - low))."""
        if self.levels is None:
            return torch.ones(len(logits))
        low, high = self.levels
        apart = max(high - low, LEAST_APART)
        return torch.sigmoid(4 * (energies(logits, self.known) - (high + low) / 2) / apart)

    def votes(self, logits: Tensor) -> Tensor:
        """Its votes (N, classes), of its logits: Eq. 2."""
        says = (logits.log_softmax(1) - self.correction).softmax(1)
        return self.gate(logits).unsqueeze(1) * self.share * says


def log_frequencies(counts: Tensor) -> Tensor:
    """Logarithm of a client's class frequencies, (classes,), of its label counts; each class has
    one sample more, so that none is infinite."""
    smoothed = counts.double() + 1
    return (smoothed / smoothed.sum()).log().float()


def energies(logits: Tensor, known: Tensor) -> Tensor:
    """E(x) = log sum_c exp f_c(x) over the classes known, (N,); of none it is minus infinity."""
    return logits.masked_fill(~known, -torch.inf).logsumexp(1)


def energy_levels(logits: Tensor, labels: Tensor, known: Tensor) -> tuple[float, float]:
    """A classifier's median energy on samples of other classes and on those of classes it knows.

    Where there are no samples of the one kind or of the other, only the tenth with the least energy
    counts as strange: the levels are its upper end, less and plus one standard deviation.

    Args:
        logits: (N, classes), the classifier's.
        labels: (N,), the samples' classes.
        known: (classes,) bool; at least one.
    """
    own, inside = energies(logits, known), known[labels]
    if inside.all() or not inside.any():
        numbers = own.double().numpy()  # NumPy sums in one order, whatever the number of threads
        tenth, deviation = float(np.quantile(numbers, 0.1)), float(numbers.std())
        return tenth - deviation, tenth + deviation
    return own[~inside].median().item(), own[inside].median().item()


def elected(votes: Tensor) -> tuple[Tensor, Tensor]:
    """All voters' sum (N, classes) as shares q, and how much was voted, (N,): Eq. 3.

    Where nobody votes all classes are alike.
    """
    total = votes + SMALLEST
    evidence = total.sum(1)
    return total / evidence.unsqueeze(1), evidence


def best_of_each_class(shares: Tensor, evidence: Tensor, quotas: Sequence[int]) -> Tensor:
    """Indices, ascending, of the samples with the most votes for a class and the fewest for others.

    Of class c those ``quotas[c]`` with the highest v_c q_c = evidence q_c^2; a sample that is
    among the best of two classes is there once.

    Args:
        shares: (N, classes), q.
        evidence: (N,).
        quotas: for each class, N at most.
    """
    worth = evidence.unsqueeze(1) * shares**2
    best = [worth[:, c].topk(quota).indices for c, quota in enumerate(quotas)]
    return torch.cat(best).unique()
