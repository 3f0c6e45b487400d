"""Images as bytes, and how near they are to others: exactly, a copied image has a distance of 0."""

import torch
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
        in ``others``, int64 (N,).
    """
    # Whole numbers far below 2**53: nothing is rounded, whatever cancels in the difference.
    ours, theirs = (pixels.flatten(1).double() for pixels in (images, others))
    squares = ours.square().sum(1, keepdim=True) - 2 * ours @ theirs.T + theirs.square().sum(1)
    least, places = torch.min(squares, dim=1)
    return (least / ours.shape[1]).sqrt() / 255, places
