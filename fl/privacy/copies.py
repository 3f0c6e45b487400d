"""Whether images that were made of a client's data repeat it: nearer to it than to unseen data."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fl.condensation.nearest import nearest


@dataclass(frozen=True)
class Copies:
    """Median root mean square distances of images to the nearest real one, from 0 to 1."""

    images: int
    to_train: float
    """To the client's training images."""
    to_test: float
    """To as many test images, which nobody trained on."""
    nearer: float
    """Share of the images that are nearer to a training image; 0.5 is chance."""

    @property
    def ratio(self) -> float:
        """Below 1 the images lie nearer to what was trained on: 0 are copies."""
        return self.to_train / self.to_test if self.to_test else 1.0


def copies(images: Tensor, train: Tensor, test: Tensor) -> Copies:
    """Compares all uint8 (., C, H, W); ``train`` and ``test`` are of the same size and classes."""
    to_train, to_test = (nearest(images, real)[0] for real in (train, test))
    nearer = (to_train < to_test).double() + (to_train == to_test).double() / 2
    return Copies(
        images=len(images),
        to_train=float(to_train.median()),
        to_test=float(to_test.median()),
        nearer=float(nearer.mean()),
    )


def as_bytes(images: Tensor) -> Tensor:
    """Images of floats as uint8, cut to [0, 1]; those of bytes as they are."""
    if images.dtype == torch.uint8:
        return images
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)
