"""Decoders whose images vary more than a client's own: moved, and of mixed labels."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.models.cvae import Decoder

MOTION = 6
"""Numbers of the code that move an image: angle, two scales, shear, two shifts."""
SMALLEST = 1e-6
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
        return torch.logit(moved(logits.sigmoid(), motion, self.warp), eps=SMALLEST)


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
