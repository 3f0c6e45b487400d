"""The protocol of fast backends of the filter and of k-means, and functions of all backends."""

from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Selection(NamedTuple):
    """The kept samples, and whether the input was valid."""

    indices: Tensor
    """(M,) int64, ascending."""
    labels_fit: bool
    """Whether every label was in range. If not, all other results are invalid."""
    largest: float
    """The largest distance: NaN or infinite if any is, 0 without samples."""


class Groups(Protocol):
    """Samples sorted by class, on their device.

    Made of samples (N, F) float32, float16 or bfloat16, N > 0, labels (N,) and the number of
    classes C. Labels out of range do no harm and are reported by `select`, so that no step has to
    wait for the device.
    """

    order: Tensor
    """(N,) int64: sample numbers by class, ascending within a class."""
    bounds: Tensor
    """(C + 1,) int64: class c has the positions bounds[c] to bounds[c + 1] of ``order``."""

    def means(self) -> Tensor:
        """(C, F) float32 mean of each class, zero for an empty one."""

    def distances(self, centroids: Tensor) -> Tensor:
        """(N,) float32 Euclidean distance of each sample to its class's row of (C, F)."""

    def select(self, distances: Tensor, keep: float) -> Selection:
        """The samples with the smallest ``distances`` (N,) of each class; ties by number."""


@lru_cache
def share(keep: float) -> tuple[int, int]:
    """``keep`` as numerator and denominator, so that quotas are exact.

    The double 0.29 is a little less than 0.29, and 0.29 * 100 would be 28.999…; the simplest
    fraction near that double is the intended one. Times 10 million samples it still fits 64 bits.
    """
    return Fraction(keep).limit_denominator(10**9).as_integer_ratio()


def quotas(counts: Tensor, keep: float) -> Tensor:
    """floor(keep * n) for each count n, but at least 1 where n > 0."""
    numerator, denominator = share(keep)
    return torch.minimum((counts * numerator // denominator).clamp(min=1), counts)


def narrow(num_classes: int) -> torch.dtype:
    """The smallest integers that hold -1 to ``num_classes``: labels in them sort fastest."""
    for dtype in (torch.int8, torch.int16, torch.int32):
        if num_classes <= torch.iinfo(dtype).max:
            return dtype
    return torch.int64


def wide(device: torch.device) -> torch.dtype:
    """The widest floating point on a device."""
    return torch.float32 if device.type == "mps" else torch.float64
