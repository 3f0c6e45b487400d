"""The errors for values that the distance filter refuses."""

from typing import NoReturn

import torch
from torch import Tensor

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
