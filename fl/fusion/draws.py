"""Random numbers by counter: a sample's draws depend on its key, not on the rank that computes it.

A rank that trains a slice of a batch has to drop the same units of the same samples as one rank
with the whole batch would. So a number is a hash of the sample's key, the stream and the position,
computed for a whole tensor at once on the device where it is needed.
"""

import torch
from torch import Tensor

from fl.seeding import seed_for

BITS = 32
MASK = (1 << BITS) - 1


def sample_keys(seed: int, purpose: str, epoch: int, rows: Tensor) -> Tensor:
    """(B,) int64 keys of the samples with row numbers ``rows`` (B,) in an epoch, 32 bits each."""
    return _mix(rows ^ (seed_for(seed, f"{purpose}/{epoch}") & MASK))


def draw_bits(keys: Tensor, stream: int, width: int) -> Tensor:
    """(B, width) int64, uniform on 32 bits: ``width`` numbers of a stream for each key (B,)."""
    positions = torch.arange(width, device=keys.device) + (stream * 0x9E3779B1 & MASK)
    return _mix(keys.unsqueeze(1) ^ _mix(positions & MASK))


def _mix(x: Tensor) -> Tensor:
    """Scrambles 32-bit numbers; a bijection. The factors fit 31 bits, so no product overflows."""
    x = x ^ (x >> 16)
    x.mul_(0x21F0AAAD).bitwise_and_(MASK)
    x ^= x >> 15
    x.mul_(0x735A2D97).bitwise_and_(MASK)
    x ^= x >> 15
    return x
