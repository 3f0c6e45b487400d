"""Dropout by counter: what is dropped of a sample depends on the sample's key alone.

A rank that trains a slice of a batch has to drop the same units of the same samples as one rank
with the whole batch would. So a number is a hash of the sample's key, the stream and the position,
computed for a whole tensor at once on the device where it is needed: some thirty operations of
torch's, or one kernel.
"""

import torch
from torch import Tensor

from kernels.backends import resolve

BITS = 32
MASK = (1 << BITS) - 1
GOLDEN = 0x9E3779B1
"""What distinguishes a stream's positions from another's."""


def drop(x: Tensor, keys: Tensor, stream: int, p: float, backend: str = "auto") -> Tensor:
    """``x`` (B, ...) with each unit zero by the chance ``p``, and the others over 1 - p.

    Args:
        x: floats, one row for each sample; the result has a gradient where ``x`` has one.
        keys: (B,) int64 in [0, 2^32).
        stream: which masks of these samples, from 0.
        p: in (0, 1].
        backend: auto, torch or triton; see :func:`kernels.backends.resolve`.
    """
    first, threshold, scale = numbers_of(stream, p)
    if resolve(backend, x.device) == "triton":
        from kernels.triton_fused import dropped

        return dropped(x, keys, first, threshold, scale)
    bits = draw_bits(keys, stream, x.shape[1:].numel()).view(x.shape)
    mask = (bits >= threshold).to(x.dtype)
    return x * mask.mul_(scale)


def draw_bits(keys: Tensor, stream: int, width: int) -> Tensor:
    """(B, width) int64, uniform on 32 bits: ``width`` numbers of a stream for each key (B,)."""
    positions = torch.arange(width, device=keys.device) + first_of(stream)
    return mix(keys.unsqueeze(1) ^ mix(positions & MASK))


def numbers_of(stream: int, p: float) -> tuple[int, int, float]:
    """A stream's first position, the number below which bits drop a unit, and the factor on the
    others."""
    return first_of(stream), round(p * 2**BITS), 1 / (1 - p) if p < 1 else 0.0


def first_of(stream: int) -> int:
    """A stream's first position, 32 bits."""
    return stream * GOLDEN & MASK


def mix(x: Tensor) -> Tensor:
    """Scrambles 32-bit numbers; a bijection. The factors fit 31 bits, so no product overflows."""
    x = x ^ (x >> 16)
    x.mul_(0x21F0AAAD).bitwise_and_(MASK)
    x ^= x >> 15
    x.mul_(0x735A2D97).bitwise_and_(MASK)
    x ^= x >> 15
    return x
