"""A shard: the samples of a data set that one client trains on, and their digest."""

import hashlib
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fl.data.datasets import Split
from fl.inputs import as_inputs


@dataclass(frozen=True, eq=False)
class Shard:
    """One client's samples, (n, ...), and labels, int64 (n,).

    Images are float32 (n, C, H, W) in [0, 1], without normalisation: the CVAE's binary
    cross-entropy needs pixels in [0, 1].
    """

    images: Tensor
    labels: Tensor
    num_classes: int
    domains: Tensor | None = None
    """int64 (n,), where the data set has domains."""

    @classmethod
    def from_split(cls, split: Split, indices: np.ndarray, num_classes: int) -> Self:
        """The samples of `split` at `indices`, int64 (n,), as tensors on the CPU."""
        images = as_inputs(split.images[indices])
        domains = None if split.domains is None else torch.from_numpy(split.domains[indices])
        return cls(images, torch.from_numpy(split.labels[indices]), num_classes, domains)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def label_counts(self) -> Tensor:
        """Samples per class, int64 (num_classes,)."""
        return torch.bincount(self.labels, minlength=self.num_classes)


def shard_digest(split: Split, indices: np.ndarray) -> str:
    """SHA-256, in hexadecimal, of the samples of `split` at `indices`: values, labels, shape.

    It hashes the content, so equal samples have one digest wherever they are in the data set.
    """
    images, labels = split.images[indices], split.labels[indices]
    digest = hashlib.sha256(f"{images.shape} {images.dtype} {labels.dtype}".encode())
    digest.update(images.tobytes())
    digest.update(labels.tobytes())
    return digest.hexdigest()
