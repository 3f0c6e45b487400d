"""The protocol of fast backends of the filter, and functions of all backends."""

import os
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NoReturn, Protocol

import torch
from torch import Tensor

# The errors for values that the distance filter refuses.

BLOCK = 1 << 22  # elements checked together


def refuse_unfit_labels(num_classes: int) -> NoReturn:
    """Raises ValueError: some label is not in [0, num_classes)."""
    raise ValueError(f"labels must be in [0, {num_classes})")


def refuse_large_samples() -> NoReturn:
    """Raises ValueError: some squared distance is beyond float32."""
    raise ValueError("samples are so large that their distances overflow")


def refuse_unfit_samples(flat: Tensor) -> NoReturn:
    """Raises ValueError, naming the first of (N, F) samples that has NaN or infinite values."""
    step = max(1, BLOCK // flat.shape[1])
    for begin in range(0, len(flat), step):
        bad = (~torch.isfinite(flat[begin : begin + step])).any(1).nonzero()
        if len(bad):
            raise ValueError(f"sample {begin + int(bad[0])} has NaN or infinite values")
    raise AssertionError("all samples are finite")


@dataclass(frozen=True)
class Sums:
    """``units`` (C, F) int64: each class's sum in units. ``counts`` (C,) int64: its samples."""

    units: Tensor
    counts: Tensor

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.units + other.units, self.counts + other.counts)


class Groups(Protocol):
    """Samples sorted by class, on their device.

    Made of samples (N, F) float32, float16 or bfloat16, N > 0, labels (N,) and the number of
    classes C. Labels out of range do no harm until `Sums.counts` shows that samples are missing.
    """

    def sums(self, unit: float, *, whole: bool) -> Sums:
        """Exact sums of the samples, rounded to units; no value may be above 2**18 units.

        ``whole``: all values are whole numbers of units already.
        """

    def distances(self, centroids: Tensor) -> Tensor:
        """(N,) float32 Euclidean distance of each sample to its class's row of (C, F)."""


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


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


def wide(device: torch.device) -> torch.dtype:
    """The widest floating point on a device."""
    return torch.float32 if device.type == "mps" else torch.float64
