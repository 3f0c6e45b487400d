"""The operations of kernels/cvae.py as one Triton kernel each; what they do is said there.

Nothing is added atomically, and every sum is over rows or columns of one slot. So runs repeat to
the bit, and a slot's bits do not depend on the others.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_groups import on_device

BLOCK = 1024
"""Elements of a row that a program reads at once."""
COLUMNS = 128
"""Columns of a program that goes down a slot's rows."""
TILE = 64
"""Slots and rows that are counted at once."""


@triton.jit
def take_kernel(  # type: ignore[no-untyped-def]
    images,
    labels,
    order,
    noise,
    shares,
    now,
    inputs,
    own_noise,
    own_shares,
    pixels,
    classes,
    latent,
    block: tl.constexpr,
):
    """Writes one row of a step's batch."""
    row = tl.program_id(0).to(tl.int64)
    ahead = tl.load(now) * tl.num_programs(0) + row
    source = tl.load(order + ahead)
    label = tl.load(labels + source)
    for first in range(0, pixels + classes, block):
        k = first + tl.arange(0, block)
        pixel = tl.load(images + source * pixels + k, mask=k < pixels, other=0).to(tl.float32)
        values = tl.where(k < pixels, pixel, tl.where(k - pixels == label, 1.0, 0.0))
        tl.store(inputs + row * (pixels + classes) + k, values, mask=k < pixels + classes)
    for first in range(0, latent, block):
        k = first + tl.arange(0, block)
        drawn = tl.load(noise + ahead * latent + k, mask=k < latent)
        tl.store(own_noise + row * latent + k, drawn, mask=k < latent)
    tl.store(own_shares + row, tl.load(shares + ahead))


def take(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`kernels.cvae.take`."""
    images, _, order, noise, shares, *_ = columns = given[:-1]
    rows, numbers = order.shape[1:], (images.shape[1], given[-1], noise.shape[-1])
    inputs = noise.new_empty(*rows, numbers[0] + numbers[1])
    made = inputs, noise.new_empty(noise.shape[1:]), shares.new_empty(rows)
    _launch(take_kernel, rows.numel(), (*columns, *made), *numbers, block=BLOCK)
    return made


@triton.jit
def reparameterise_kernel(  # type: ignore[no-untyped-def]
    heads, noise, z, kl, by_logvar, onehot, stride, latent, classes, bound, block: tl.constexpr
):
    """Draws one row's z; ``stride`` is from one row's label to the next."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, block)
    inside = k < latent
    mu = tl.load(heads + row * 2 * latent + k, mask=inside, other=0)
    raw = tl.load(heads + row * 2 * latent + latent + k, mask=inside, other=0)
    drawn = tl.load(noise + row * latent + k, mask=inside, other=0)
    label = tl.load(onehot + row * stride + k, mask=k < classes)
    logvar = tl.where(raw < -bound, -bound, tl.where(raw > bound, bound, raw))  # NaN stays
    deviation = tl.exp(logvar / 2)
    variance = deviation * deviation
    half = tl.where(raw == logvar, 0.5, 0.0)
    tl.store(heads + row * 2 * latent + latent + k, (variance - 1) * half, mask=inside)
    tl.store(by_logvar + row * latent + k, deviation * drawn * half, mask=inside)
    tl.store(z + row * (latent + classes) + k, mu + deviation * drawn, mask=inside)
    tl.store(z + row * (latent + classes) + latent + k, label, mask=k < classes)
    tl.store(kl + row, -0.5 * tl.sum(1 + logvar - mu * mu - variance, 0))


def reparameterise(
    heads: Tensor, noise: Tensor, onehot: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`kernels.cvae.reparameterise`."""
    *rows, latent = noise.shape
    classes = onehot.shape[-1]
    z, kl = noise.new_empty(*rows, latent + classes), noise.new_empty(rows)
    by_logvar = torch.empty_like(noise)
    _launch(
        *(reparameterise_kernel, kl.numel(), (heads, noise, z, kl, by_logvar)),
        *(onehot, onehot.stride(-2), latent, classes, bound),
        block=triton.next_power_of_2(max(latent, classes)),
        num_warps=1,
    )
    return z, kl, by_logvar


@triton.jit
def cross_entropy_kernel(  # type: ignore[no-untyped-def]
    logits, shares, losses, images, stride, pixels, block: tl.constexpr
):
    """One row's loss and gradient; ``stride`` is from one row's image to the next."""
    row = tl.program_id(0).to(tl.int64)
    share = tl.load(shares + row)
    total = tl.zeros((block,), tl.float32)
    for first in range(0, pixels, block):
        k = first + tl.arange(0, block)
        inside = k < pixels
        logit = tl.load(logits + row * pixels + k, mask=inside, other=0)
        pixel = tl.load(images + row * stride + k, mask=inside, other=0)
        small = tl.exp(-tl.abs(logit))
        linear = tl.where(logit < 0, 0.0, logit) - pixel * logit
        total += tl.where(inside, linear + tl.log(1 + small), 0.0)
        drawn = tl.where(logit < 0, small, 1.0) / (1 + small)
        tl.store(logits + row * pixels + k, (drawn - pixel) * share, mask=inside)
    tl.store(losses + row, tl.load(losses + row) + tl.sum(total, 0))


def cross_entropy(logits: Tensor, images: Tensor, shares: Tensor, losses: Tensor) -> None:
    """See :func:`kernels.cvae.cross_entropy`."""
    _launch(
        *(cross_entropy_kernel, losses.numel(), (logits, shares, losses)),
        *(images, images.stride(-2), logits.shape[-1]),
        block=BLOCK,
    )


@triton.jit
def of_heads_kernel(  # type: ignore[no-untyped-def]
    of_z, of_kl, by_logvar, shares, out, latent, width, block: tl.constexpr
):
    """One row's gradient of mu and logvar."""
    row = tl.program_id(0).to(tl.int64)
    share = tl.load(shares + row)
    k = tl.arange(0, block)
    inside = k < latent
    of_mu = tl.load(of_z + row * width + k, mask=inside)
    of_logvar = of_mu * tl.load(by_logvar + row * latent + k, mask=inside)
    at = row * 2 * latent + k
    of_mu += tl.load(of_kl + at, mask=inside) * share
    of_logvar += tl.load(of_kl + at + latent, mask=inside) * share
    tl.store(out + at, of_mu, mask=inside)
    tl.store(out + at + latent, of_logvar, mask=inside)


def of_heads(of_z: Tensor, of_kl: Tensor, by_logvar: Tensor, shares: Tensor) -> Tensor:
    """See :func:`kernels.cvae.of_heads`."""
    out, latent = torch.empty_like(of_kl), by_logvar.shape[-1]
    _launch(
        *(of_heads_kernel, shares.numel(), (of_z, of_kl, by_logvar, shares, out)),
        *(latent, of_z.shape[-1]),
        block=triton.next_power_of_2(latent),
        num_warps=1,
    )
    return out


@triton.jit
def end_layer_kernel(  # type: ignore[no-untyped-def]
    gradient, seen, of_bias, stride, size, width, has_relu: tl.constexpr, block: tl.constexpr
):
    """Goes down some columns of one slot's rows; ``stride`` is from one slot's bias to the next."""
    tiles = tl.cdiv(width, block)
    slot = (tl.program_id(0) // tiles).to(tl.int64)
    columns = tl.program_id(0) % tiles * block + tl.arange(0, block)
    inside = columns < width
    total = tl.zeros((block,), tl.float32)
    for row in range(size):
        at = (slot * size + row) * width + columns
        own = tl.load(gradient + at, mask=inside, other=0)
        if has_relu:
            own *= (tl.load(seen + at, mask=inside, other=0) > 0).to(tl.float32)
            tl.store(gradient + at, own, mask=inside)
        total += own
    tl.store(of_bias + slot * stride + columns, total, mask=inside)


def end_layer(gradient: Tensor, seen: Tensor | None, of_bias: Tensor) -> None:
    """See :func:`kernels.cvae.end_layer`."""
    size, width = gradient.shape[-2:]
    programs = of_bias.numel() // width * triton.cdiv(width, COLUMNS)
    _launch(
        *(end_layer_kernel, programs, (gradient, gradient if seen is None else seen)),
        *(of_bias, of_bias.stride(0), size, width),
        has_relu=seen is not None,
        block=COLUMNS,
    )


@triton.jit
def count_kernel(losses, shares, seen, now, slots, size, tile: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums every slot's rows, and then moves the counter; one program."""
    number = tl.load(now)
    for first in range(0, slots, tile):
        own = first + tl.arange(0, tile)
        total = tl.zeros((tile, tile), tl.float32)
        for begin in range(0, size, tile):
            rows = begin + tl.arange(0, tile)
            inside = (own < slots)[:, None] & (rows < size)[None, :]
            at = own[:, None] * size + rows[None, :]
            counts = tl.load(shares + at, mask=inside, other=0) > 0
            total += tl.load(losses + at, mask=counts, other=0)
        tl.store(seen + number * slots + own, tl.sum(total, 1), mask=own < slots)
    tl.debug_barrier()  # until every thread has read the number
    tl.store(now, number + 1)


def count(losses: Tensor, shares: Tensor, seen: Tensor, now: Tensor) -> None:
    """See :func:`kernels.cvae.count`."""
    _launch(count_kernel, 1, (losses, shares, seen, now), *losses.shape, tile=TILE)


def _launch(
    kernel: Any, programs: int, rows: Sequence[Tensor], *others: Any, **constants: int
) -> None:
    """Launches it with ``rows``, whose strides it is not told, and what else it takes."""
    assert all(tensor.is_contiguous() for tensor in rows)
    with on_device(rows[0]):
        kernel[(programs,)](*rows, *others, **constants)
