"""Images in condensation: as bytes, how near they are to others, and augmented."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def as_bytes(images: Tensor) -> Tensor:
    """Images of floats as uint8, cut to [0, 1]; those of bytes as they are."""
    if images.dtype == torch.uint8:
        return images
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def nearest(images: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest of ``others`` to each image, all uint8 (., C, H, W).

    Returns:
        The root mean square distances, in pixels' units from 0 to 1, float64 (N,), and the places
        in ``others``, int64 (N,). A copied image has a distance of exactly 0.
    """
    # Whole numbers far below 2**53: nothing is rounded, whatever cancels in the difference.
    ours, theirs = (pixels.flatten(1).double() for pixels in (images, others))
    squares = ours.square().sum(1, keepdim=True) - 2 * ours @ theirs.T + theirs.square().sum(1)
    least, places = torch.min(squares, dim=1)
    return (least / ours.shape[1]).sqrt() / 255, places


# Differentiable augmentation (Zhao and Bilen, ICML 2021): one of the chosen kinds is drawn, and its
# strength; real and condensed images then go through the same differentiable function.

Augmentation = Callable[[Tensor], Tensor]


def draw_augmentation(kinds: Sequence[str], stream: torch.Generator) -> Augmentation:
    """A function of images (B, C, H, W), the same for all of them; without kinds the identity."""
    if not kinds:
        return lambda images: images
    kind = kinds[int(torch.randint(len(kinds), (), generator=stream))]
    u, v = (2 * drawn - 1 for drawn in torch.rand(2, generator=stream).tolist())
    return lambda images: KINDS[kind](images, u, v)


def _rotate(x: Tensor, u: float, _: float) -> Tensor:
    """Rotates by up to 15 degrees."""
    angle = u * math.radians(15)
    cos, sin = math.cos(angle), math.sin(angle)
    return _affine(x, [[cos, -sin, 0], [sin, cos, 0]])


def _cutout(x: Tensor, u: float, v: float) -> Tensor:
    """A square of half the side becomes black."""
    height, width = x.shape[2:]
    top, left = round((u + 1) / 4 * height), round((v + 1) / 4 * width)
    mask = torch.ones_like(x[:1])
    mask[:, :, top : top + height // 2, left : left + width // 2] = 0
    return x * mask


def _affine(x: Tensor, matrix: list[list[float]]) -> Tensor:
    # Filled in on the device, since the host would wait for the copy of a list.
    theta = torch.stack([x.new_full((), value) for row in matrix for value in row])
    theta = theta.view(2, 3).expand(len(x), 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    if x.is_cuda and torch.are_deterministic_algorithms_enabled():
        return sampled(x, grid[0])
    return F.grid_sample(x, grid, align_corners=False)


def sampled(x: Tensor, grid: Tensor) -> Tensor:
    """The images (B, C, H, W) at the places (H, W, 2) of a grid: ``F.grid_sample`` with its
    defaults, whose gradient CUDA adds up in another order each time."""
    height, width = x.shape[2:]
    column = ((grid[..., 0] + 1) * width - 1) / 2
    row = ((grid[..., 1] + 1) * height - 1) / 2
    total = torch.zeros_like(x)
    for r in (row.floor(), row.floor() + 1):
        for c in (column.floor(), column.floor() + 1):
            inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
            share = (1 - (row - r).abs()) * (1 - (column - c).abs()) * inside
            pixels = r.clamp(0, height - 1).long() * width + c.clamp(0, width - 1).long()
            total = total + x.flatten(2)[:, :, pixels] * share
    return total


def _spread(x: Tensor, middle: Tensor, factor: float) -> Tensor:
    """Moves pixels away from the middle, or towards it."""
    return middle + factor * (x - middle)


KINDS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "brightness": lambda x, u, v: x + u / 2,
    "contrast": lambda x, u, v: _spread(x, x.mean((1, 2, 3), keepdim=True), 1 + u / 2),
    "saturation": lambda x, u, v: _spread(x, x.mean(1, keepdim=True), 1 + u),
    # By up to an eighth of the side.
    "shift": lambda x, u, v: _affine(x, [[1, 0, u / 4], [0, 1, v / 4]]),
    # Each side by a factor of 1 / 1.2 to 1.2.
    "scale": lambda x, u, v: _affine(x, [[1.2**u, 0, 0], [0, 1.2**v, 0]]),
    "rotate": _rotate,
    "flip": lambda x, u, v: x.flip(3) if u < 0 else x,
    "cutout": _cutout,
}
"""Each as a function of images (B, C, H, W) and two numbers in [-1, 1], its strength."""
