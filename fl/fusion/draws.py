"""Random numbers by counter: a sample's draws depend on its key, not on the rank that computes it.

A rank that trains a slice of a batch has to drop the same units of the same samples as one rank
with the whole batch would. So a number is a hash of the sample's key, the stream and the position,
computed for a whole tensor at once on the device where it is needed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.models.shapes import AnyDropout
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


# Dropout with masks that depend on the samples alone, not on the number of ranks.


class Masks:
    """The masks of one step: by sample, and another one for each dropout layer passed."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._passed = 0

    def start_step(self, keys: Tensor) -> None:
        """``keys`` (B,) of the samples that the model sees next."""
        self._keys, self._passed = keys, 0

    def drop(self, layer: nn.Dropout, x: Tensor) -> Tensor:
        """The output of ``layer`` for ``x`` (B, ...)."""
        if not layer.training or layer.p == 0:
            return x
        keys, stream = self._keys, self._passed
        self._passed += 1
        if keys is None or len(keys) != len(x):
            raise ValueError(
                f"dropout met {len(x)} rows, and the step has {0 if keys is None else len(keys)} "
                "samples: a loss must pass the model one row for each sample"
            )
        bits = draw_bits(keys, stream, x.shape[1:].numel()).view(x.shape)
        mask = (bits >= round(layer.p * 2**BITS)).to(x.dtype)
        return x * mask.mul_(1 / (1 - layer.p) if layer.p < 1 else 0)


@contextmanager
def sample_dropout(model: nn.Module) -> Iterator[Masks]:
    """Inside the context the model's dropout layers take their masks from the result.

    Raises:
        UserError: the model has another kind of dropout than ``nn.Dropout``.
    """
    masks = Masks()
    layers = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            layers.append(module)
        elif isinstance(module, AnyDropout):
            raise UserError(f"the server trains with nn.Dropout only, not {type(module).__name__}")
    try:
        for layer in layers:
            layer.forward = partial(masks.drop, layer)  # type: ignore[method-assign]
        yield masks
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)
