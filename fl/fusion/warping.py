"""Small random distortions of images, so that a model learns strokes and not where they lie."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.fusion.draws import BITS, MASK, draw_bits
from fl.seeding import seed_for

PIXEL_STEPS = 2**18
"""Steps between black and white that tell pixels apart: drawn pixels are multiples of one."""


@dataclass(frozen=True)
class Warp:
    """An affine map of each image about its middle, drawn evenly up to these amounts both ways.

    An image's map is drawn from the image itself and the run's seed. So it is the same on whatever
    rank, beside whatever other images.
    """

    seed: int
    strength: float = 1.0
    """Factor on all amounts; 0 leaves images as they are."""
    degrees: float = 12.0
    shift: float = 1 / 14
    """Of the image's side."""
    scale: float = 0.15
    """Of the logarithm of each side's factor."""
    shear: float = 0.15

    def __call__(self, images: Tensor) -> Tensor:
        """The images (N, C, H, W), warped; what is moved in from outside is 0."""
        if not self.strength:
            return images
        maps = self.maps(images).to(images.dtype)
        grid = F.affine_grid(maps, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False)

    def maps(self, images: Tensor) -> Tensor:
        """The maps, (N, 2, 3) float64: from places in the result, -1 to 1, to those in the image.

        ``[R(angle) S(shear) diag(e^a, e^b) | shift]``.
        """
        draws = draw_bits(_keys(images, self.seed), 0, 6).double() / 2 ** (BITS - 1) - 1
        angle, shear, a, b, x, y = (self.strength * draws).unbind(1)
        angle, shear = angle * math.radians(self.degrees), shear * self.shear
        a, b, x, y = a * self.scale, b * self.scale, x * 2 * self.shift, y * 2 * self.shift
        cos, sin = angle.cos(), angle.sin()
        across = torch.stack([a.exp() * cos, b.exp() * (shear * cos - sin), x], dim=1)
        down = torch.stack([a.exp() * sin, b.exp() * (shear * sin + cos), y], dim=1)
        return torch.stack([across, down], dim=1)


def _keys(images: Tensor, seed: int) -> Tensor:
    """(N,) int64, 32 bits each, that depend on every pixel."""
    steps = (images.flatten(1) * PIXEL_STEPS).round().long() & MASK
    odd = (2 * torch.arange(steps.shape[1], device=images.device) + 1) * 0x9E3779B1 & MASK
    return ((steps * odd & MASK).sum(1) ^ seed_for(seed, "warp")) & MASK
