"""Dropout by counter as one Triton kernel, which also makes the gradient: it draws anew."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_groups import on_device

BLOCK = 1024


@triton.jit
def mixed(x):  # type: ignore[no-untyped-def]
    """See :func:`kernels.dropout.mix`, of unsigned 32-bit numbers."""
    x = x ^ (x >> 16)
    x = x * tl.full((), 0x21F0AAAD, tl.uint32)
    x = x ^ (x >> 15)
    x = x * tl.full((), 0x735A2D97, tl.uint32)
    return x ^ (x >> 15)


@triton.jit
def factors_of(keys, places, width, inside, first, threshold, scale):  # type: ignore[no-untyped-def]
    """0 or ``scale`` for each unit of (B, width), by its place: as `kernels.dropout.drop` draws."""
    key = tl.load(keys + places // width, mask=inside, other=0).to(tl.uint32)
    positions = (places % width).to(tl.uint32) + first.to(tl.uint32)
    return tl.where(mixed(key ^ mixed(positions)).to(tl.int64) >= threshold, scale, 0.0)


@triton.jit
def drop_kernel(  # type: ignore[no-untyped-def]
    x, keys, out, count, width, first, threshold, scale, block: tl.constexpr
):
    """Writes ``block`` units of ``x`` (B, width): their factors are 0 or ``scale``.

    ``first`` is the stream's first position; ``threshold`` may be 2^32.
    """
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = places < count
    values = tl.load(x + places, mask=inside, other=0)
    # As torch has it: the factor in the units' type, the product rounded once.
    factors = factors_of(keys, places, width, inside, first, threshold, scale).to(values.dtype)
    product = values.to(tl.float32) * factors.to(tl.float32)
    tl.store(out + places, product.to(values.dtype), mask=inside)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, *numbers: float) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.numbers = numbers
        return _launch(x, keys, *numbers)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (keys,) = ctx.saved_tensors
        return _launch(gradient, keys, *ctx.numbers), None, None, None, None


def dropped(x: Tensor, keys: Tensor, first: int, threshold: int, scale: float) -> Tensor:
    """``x`` (B, ...) with units zero by their bits, and the others times ``scale``.

    Args:
        x: floats, one row for each sample; the result has a gradient where ``x`` has one.
        keys: (B,) int64 in [0, 2^32).
        first: the stream's first position.
        threshold: units whose bits are below it are dropped; up to 2^32.
        scale: factor on the others.
    """
    return _Dropped.apply(x, keys, first, threshold, scale)


def _launch(x: Tensor, keys: Tensor, *numbers: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        with on_device(x):
            drop_kernel[(triton.cdiv(x.numel(), BLOCK),)](
                *(x, keys, out, x.numel(), x.shape[1:].numel(), *numbers), block=BLOCK
            )
    return out
