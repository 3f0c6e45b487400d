"""A shard: the samples of a data set that one client trains on, and their digest."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fl.data.datasets import Split
from fl.data.lazy import Augment, Lazy
from fl.inputs import as_inputs


@dataclass(frozen=True, eq=False)
class Shard:
    """One client's samples, (n, ...), and labels, int64 (n,).

    Images are float32 (n, C, H, W) in [0, 1], without normalisation: the CVAE's binary
    cross-entropy needs pixels in [0, 1].
    """

    samples: Tensor | Lazy
    """As tensors, or to be read."""
    labels: Tensor
    num_classes: int
    domains: Tensor | None = None
    """int64 (n,), where the data set has domains."""
    targets: Tensor | None = None
    """(n, ...), where there are no classes: the labels are all 0 then."""
    augment: Augment | None = None
    """What is done to a sample each time that a classifier trains on it."""

    @classmethod
    def from_split(cls, split: Split, indices: np.ndarray, num_classes: int) -> Self:
        """The samples of `split` at `indices`, int64 (n,), as tensors on the CPU."""
        chosen = split.images[indices]
        samples = chosen if isinstance(chosen, Lazy) else as_inputs(chosen)
        domains = None if split.domains is None else torch.from_numpy(split.domains[indices])
        targets = None if split.targets is None else torch.from_numpy(split.targets[indices])
        if targets is not None and targets.dtype == torch.uint8:  # labels, each 0 or 1
            targets = targets.float()
        labels = torch.from_numpy(split.labels[indices])
        return cls(samples, labels, num_classes, domains, targets, split.augment)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def images(self) -> Tensor:
        """All samples in memory, as they are without what a transform changes in an epoch."""
        if isinstance(self.samples, Tensor):
            return self.samples
        return as_inputs(np.asarray(self.samples))

    @property
    def varies(self) -> bool:
        """Whether samples are to be read, or changed, each time that they are trained on."""
        return self.augment is not None or not isinstance(self.samples, Tensor)

    @property
    def changes(self) -> bool:
        """Whether a sample may be another one each time that it is read."""
        return self.augment is not None or getattr(self.samples, "draws", False)

    def batch(self, rows: Tensor, stream: torch.Generator) -> Tensor:
        """The samples at ``rows``, int64 (B,), to train on: read and changed anew, with random
        numbers of the client's own stream."""
        if isinstance(self.samples, Tensor):
            found = self.samples.index_select(0, rows)
        else:
            found = as_inputs(self.samples.read(rows.numpy(), _drawn(stream)))
        return found if self.augment is None else self.augment(found, _drawn(stream))

    def take(self, rows: Tensor) -> Self:
        """The samples at these rows, int64 (m,)."""
        columns = {n: getattr(self, n) for n in ("labels", "domains", "targets")}
        taken = {n: column[rows] for n, column in columns.items() if column is not None}
        samples = self.samples
        chosen = samples[rows] if isinstance(samples, Tensor) else samples[rows.numpy()]
        return replace(self, samples=chosen, **taken)

    @property
    def wanted(self) -> Tensor:
        """What a model is to answer: the targets, or else the labels."""
        return self.labels if self.targets is None else self.targets

    @property
    def label_counts(self) -> Tensor:
        """Samples per class, int64 (num_classes,)."""
        return torch.bincount(self.labels, minlength=self.num_classes)


def _drawn(stream: torch.Generator) -> int:
    return int(torch.randint(2**62, (1,), generator=stream))


def shard_digest(split: Split, indices: np.ndarray) -> str:
    """SHA-256, in hexadecimal, of the samples of `split` at `indices`: values, labels, shape.

    It hashes the content, so equal samples have one digest wherever they are in the data set.
    """
    images, labels = split.images[indices], split.labels[indices]
    digest = hashlib.sha256(f"{images.shape} {images.dtype} {labels.dtype}".encode())
    digest.update(images.tobytes())
    digest.update(labels.tobytes())
    if split.targets is not None:
        targets = split.targets[indices]
        digest.update(f"{targets.shape} {targets.dtype}".encode() + targets.tobytes())
    if split.domains is not None:
        digest.update(b" domains " + split.domains[indices].tobytes())
    if split.augment is not None:
        digest.update(f" augmented {split.augment.digest}".encode())
    return digest.hexdigest()
