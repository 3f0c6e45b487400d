"""A client's real images by class: condensation starts from them and matches them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fl.data.shard import Shard

NOISE_MEAN, NOISE_STD = 0.5, 0.25
"""Mean and deviation of images that start from noise: pixels lie in [0, 1]."""


class ByClass:
    """A client's images by class, for the classes of which it has enough.

    Args:
        shard: the client's data.
        min_samples: classes with fewer are left out.
        device: where batches are needed.
    """

    def __init__(self, shard: Shard, min_samples: int, device: torch.device) -> None:
        self._images = shard.images.to(device)
        counts = shard.label_counts
        held = torch.nonzero((counts >= min_samples) & (counts > 0)).flatten()
        self.classes: Tensor = held
        """The classes, ascending, int64 (m,)."""
        self._rows = [torch.nonzero(shard.labels == c).flatten() for c in held]

    def start(
        self, per_class: int, averaged: int, stream: torch.Generator, *, noise: bool
    ) -> Tensor:
        """Images to start from, (m * per_class, C, H, W), class after class.

        Each is the mean of ``averaged`` random real ones of its class, some perhaps twice, or
        noise.
        """
        shape = self._images.shape[1:]
        if noise:
            drawn = torch.randn(len(self._rows) * per_class, *shape, generator=stream)
            return (NOISE_MEAN + NOISE_STD * drawn).to(self._images.device)
        chosen = [
            rows[torch.randint(len(rows), (per_class, averaged), generator=stream)]
            for rows in self._rows
        ]
        none = torch.empty(0, averaged, dtype=torch.int64)
        return self._images[torch.cat([none, *chosen]).to(self._images.device)].mean(1)

    def batch(self, per_class: int, stream: torch.Generator) -> Tensor:
        """Real images, (m * per_class, C, H, W), class after class, without repetition.

        A class with fewer samples is repeated, so that all classes have the same weight in the
        statistics that BatchNorm computes over the batch.
        """
        positions = torch.arange(per_class)
        chosen = [
            rows[torch.randperm(len(rows), generator=stream)[positions % len(rows)]]
            for rows in self._rows
        ]
        return self._images[torch.cat(chosen).to(self._images.device)]

    def __iter__(self) -> Iterator[Tensor]:
        """All images of each class, (n, C, H, W)."""
        return (self._images[rows.to(self._images.device)] for rows in self._rows)
