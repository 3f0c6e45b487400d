"""Pieces of a training step, each by one Triton kernel where torch launches several, and their
gradients: at small batches a step takes as long as its launches.

Where torch computes them (:func:`kernels.backends.fuses`) they have the bits that they always had.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_groups import on_device

BLOCK = 1024
TILE = 4096  # elements of a tile of rows and columns


# Dropout by counter, which also makes the gradient: it draws anew.


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
        return _drop(x, keys, *numbers)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (keys,) = ctx.saved_tensors
        return _drop(gradient, keys, *ctx.numbers), None, None, None, None


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


def _drop(x: Tensor, keys: Tensor, *numbers: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        with on_device(x):
            drop_kernel[(triton.cdiv(x.numel(), BLOCK),)](
                *(x, keys, out, x.numel(), x.shape[1:].numel(), *numbers), block=BLOCK
            )
    return out


@triton.jit
def hidden_kernel(  # type: ignore[no-untyped-def]
    x, bias, keys, out, count, width, first, threshold, scale, block: tl.constexpr
):
    """Writes ``block`` units of ReLU(x + bias), (B, width), dropped as by `drop_kernel`."""
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = places < count
    values = tl.load(x + places, mask=inside, other=0)
    added = tl.load(bias + places % width, mask=inside, other=0)
    shifted = values.to(tl.float32) + added.to(tl.float32)
    # NaN is not below 0, and stays.
    positive = tl.where(shifted <= 0, 0.0, shifted).to(values.dtype).to(tl.float32)
    factors = factors_of(keys, places, width, inside, first, threshold, scale).to(values.dtype)
    tl.store(out + places, (positive * factors.to(tl.float32)).to(values.dtype), mask=inside)


@triton.jit
def hidden_gradient_kernel(  # type: ignore[no-untyped-def]
    gradient, out, of_x, of_bias, num_rows, width, scale, rows: tl.constexpr, columns: tl.constexpr
):
    """Writes the gradients of x and of the bias for some columns; what was dropped, or below 0, is
    0 in ``out``."""
    places = tl.program_id(0) * columns + tl.arange(0, columns)
    inside = places < width
    total = tl.zeros((columns,), tl.float32)
    for first in range(0, num_rows, rows):
        numbers = first + tl.arange(0, rows)
        mask = (numbers < num_rows)[:, None] & inside[None, :]
        offsets = numbers[:, None].to(tl.int64) * width + places[None, :]
        given = tl.load(gradient + offsets, mask=mask, other=0)
        passes = tl.load(out + offsets, mask=mask, other=0).to(tl.float32) > 0
        scaled = tl.where(passes, given.to(tl.float32) * scale, 0.0)
        tl.store(of_x + offsets, scaled.to(given.dtype), mask=mask)
        total += tl.sum(scaled, 0)
    tl.store(of_bias + places, total.to(of_bias.dtype.element_ty), mask=inside)


class _Hidden(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor, keys: Tensor, first: int, threshold: int, scale: float
    ) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        with on_device(x):
            hidden_kernel[(triton.cdiv(x.numel(), BLOCK),)](
                *(x, bias, keys, out, x.numel(), x.shape[1], first, threshold, scale), block=BLOCK
            )
        ctx.save_for_backward(out, bias)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        out, bias = ctx.saved_tensors
        of_x, of_bias = torch.empty_like(out), torch.empty_like(bias)
        num_rows, width = out.shape
        with on_device(out):
            hidden_gradient_kernel[(triton.cdiv(width, 32),)](
                *(gradient.contiguous(), out, of_x, of_bias, num_rows, width, ctx.scale),
                rows=64,
                columns=32,
            )
        return of_x, of_bias, None, None, None, None


def hidden(
    x: Tensor, bias: Tensor, keys: Tensor, first: int, threshold: int, scale: float
) -> Tensor:
    """ReLU(x + bias) with dropout, (B, width); see :func:`dropped`."""
    return _Hidden.apply(x, bias, keys, first, threshold, scale)


@triton.jit
def place_of(  # type: ignore[no-untyped-def]
    places, channels, height, width, channels_last: tl.constexpr
):
    """Sample, channel, row and column of an element by its place in memory."""
    if channels_last:
        c = places % channels
        rest = places // channels
        return rest // width // height, c, rest // width % height, rest % width
    rest = places // width // height
    return rest // channels, rest % channels, places // width % height, places % width


@triton.jit
def pool_kernel(  # type: ignore[no-untyped-def]
    x,
    out,
    count,
    channels,
    height,
    width,
    of_sample,
    of_channel,
    of_row,
    of_column,
    channels_last: tl.constexpr,
    block: tl.constexpr,
):
    """Writes ``block`` of the maxima of ReLU(x) over squares of two, (B, C, height, width)."""
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = places < count
    n, c, h, w = place_of(places, channels, height, width, channels_last)
    corner = x + n * of_sample + c * of_channel + 2 * h * of_row + 2 * w * of_column
    a = tl.load(corner, mask=inside, other=0).to(tl.float32)
    b = tl.load(corner + of_column, mask=inside, other=0).to(tl.float32)
    both = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    a = tl.load(corner + of_row, mask=inside, other=0).to(tl.float32)
    b = tl.load(corner + of_row + of_column, mask=inside, other=0).to(tl.float32)
    lower = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    largest = tl.maximum(both, lower, propagate_nan=tl.PropagateNan.ALL)
    positive = tl.where(largest <= 0, 0.0, largest)
    tl.store(out + places, positive.to(out.dtype.element_ty), mask=inside)


@triton.jit
def pool_gradient_kernel(  # type: ignore[no-untyped-def]
    gradient,
    x,
    of_x,
    count,
    channels,
    height,
    width,
    of_sample,
    of_channel,
    of_row,
    of_column,
    g_of_sample,
    g_of_channel,
    g_of_row,
    g_of_column,
    channels_last: tl.constexpr,
    block: tl.constexpr,
):
    """Writes ``block`` of the gradient of x: of a square its first largest gets what is given."""
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    n, c, h, w = place_of(places, channels, height, width, channels_last)
    pooled = (places < count) & (h // 2 < height // 2) & (w // 2 < width // 2)
    own = tl.load(x + places, mask=pooled, other=0).to(tl.float32)
    corner = x + n * of_sample + c * of_channel + (h - h % 2) * of_row + (w - w % 2) * of_column
    position = 2 * (h % 2) + w % 2
    chosen = own > 0
    for other in tl.static_range(4):
        at = corner + (other // 2) * of_row + (other % 2) * of_column
        value = tl.load(at, mask=pooled, other=0).to(tl.float32)
        chosen = chosen & ((own > value) | ((own == value) & (position <= other)))
    source = n * g_of_sample + c * g_of_channel + h // 2 * g_of_row + w // 2 * g_of_column
    given = tl.load(gradient + source, mask=pooled & chosen, other=0)
    tl.store(of_x + places, given, mask=places < count)


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        x = x.contiguous(memory_format=layout)
        size = (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
        out = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=layout)
        with on_device(x):
            pool_kernel[(triton.cdiv(out.numel(), BLOCK),)](
                *(x, out, out.numel(), *size[1:], *x.stride()), channels_last=last, block=BLOCK
            )
        ctx.save_for_backward(x)
        ctx.last = last
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        of_x = torch.empty_like(x)
        with on_device(x):
            pool_gradient_kernel[(triton.cdiv(x.numel(), BLOCK),)](
                *(gradient, x, of_x, x.numel(), *x.shape[1:], *x.stride(), *gradient.stride()),
                channels_last=ctx.last,
                block=BLOCK,
            )
        return of_x


def pooled(x: Tensor) -> Tensor:
    """Maxima of ReLU(x) over squares of two, (B, C, H, W) to (B, C, H // 2, W // 2)."""
    return _Pooled.apply(x)


@triton.jit
def log_probabilities(logits, offsets, inside, is_class):  # type: ignore[no-untyped-def]
    """The logarithm of the softmax of each row of logits; -inf behind the last class."""
    values = tl.load(logits + offsets, mask=inside, other=0).to(tl.float32)
    values = tl.where(is_class, values, -float("inf"))
    shifted = values - tl.max(values, 1)[:, None]
    return shifted - tl.log(tl.sum(tl.exp(shifted), 1))[:, None]


@triton.jit
def distillation_kernel(  # type: ignore[no-untyped-def]
    logits,
    labels,
    teacher,
    found,
    num_rows,
    num_classes,
    ce,
    kd,
    rows: tl.constexpr,
    classes: tl.constexpr,
):
    """Writes the loss, by one program: so its additions have one order."""
    columns = tl.arange(0, classes)
    is_class = (columns < num_classes)[None, :]
    total = tl.zeros((rows,), tl.float32)
    for first in range(0, num_rows, rows):
        numbers = first + tl.arange(0, rows)
        inside = (numbers < num_rows)[:, None] & is_class
        offsets = numbers[:, None].to(tl.int64) * num_classes + columns[None, :]
        student = log_probabilities(logits, offsets, inside, is_class)
        wanted = log_probabilities(teacher, offsets, inside, is_class)
        label = tl.load(labels + numbers, mask=numbers < num_rows, other=0)
        is_label = columns[None, :] == label[:, None]
        apart = tl.sum(tl.where(inside, tl.exp(wanted) * (wanted - student), 0.0), 1)
        entropy = -tl.sum(tl.where(inside & is_label, student, 0.0), 1)
        # A label that is no class must not look like a sample without a loss.
        known = (label >= 0) & (label < num_classes)
        total += tl.where(known, ce * entropy + kd * apart, float("nan"))
    tl.store(found, tl.sum(total, 0))


@triton.jit
def distillation_gradient_kernel(  # type: ignore[no-untyped-def]
    gradient,
    logits,
    labels,
    teacher,
    of_logits,
    num_rows,
    num_classes,
    ce,
    kd,
    rows: tl.constexpr,
    classes: tl.constexpr,
):
    """Writes the gradient of some rows' logits: p (ce + kd) - kd q - ce at the label."""
    columns = tl.arange(0, classes)
    is_class = (columns < num_classes)[None, :]
    numbers = tl.program_id(0) * rows + tl.arange(0, rows)
    inside = (numbers < num_rows)[:, None] & is_class
    offsets = numbers[:, None].to(tl.int64) * num_classes + columns[None, :]
    student = tl.exp(log_probabilities(logits, offsets, inside, is_class))
    wanted = tl.exp(log_probabilities(teacher, offsets, inside, is_class))
    label = tl.load(labels + numbers, mask=numbers < num_rows, other=0)
    is_label = (columns[None, :] == label[:, None]).to(tl.float32)
    slope = (ce * (student - is_label) + kd * (student - wanted)) * tl.load(gradient)
    tl.store(of_logits + offsets, slope.to(of_logits.dtype.element_ty), mask=inside)


class _Distillation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, teacher: Tensor, ce: float, kd: float
    ) -> Tensor:
        logits, teacher = logits.contiguous(), teacher.contiguous()
        num_rows, num_classes = logits.shape
        classes = triton.next_power_of_2(num_classes)
        rows = max(1, min(triton.next_power_of_2(num_rows), TILE // classes))
        ctx.numbers = (num_rows, num_classes, ce, kd)
        ctx.tile = {"rows": rows, "classes": classes}
        found = logits.new_empty((), dtype=torch.float32)
        with on_device(logits):
            distillation_kernel[(1,)](logits, labels, teacher, found, *ctx.numbers, **ctx.tile)
        ctx.save_for_backward(logits, labels, teacher)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, teacher = ctx.saved_tensors
        of_logits = torch.empty_like(logits)
        with on_device(logits):
            distillation_gradient_kernel[(triton.cdiv(len(logits), ctx.tile["rows"]),)](
                *(gradient, logits, labels, teacher, of_logits, *ctx.numbers), **ctx.tile
            )
        return of_logits, None, None, None, None


def distillation(logits: Tensor, labels: Tensor, teacher: Tensor, ce: float, kd: float) -> Tensor:
    """The sum over samples of ``ce`` times the cross-entropy of the label, plus ``kd`` times the KL
    divergence from the teacher; NaN if a label is no class.

    Args:
        logits: (B, C), of the student.
        labels: (B,) int64.
        teacher: (B, C) logits.
    """
    return _Distillation.apply(logits, labels, teacher, ce, kd)


@triton.jit
def record_kernel(losses, loss, place):  # type: ignore[no-untyped-def]
    """Writes a loss at a place, and moves the place on by one."""
    at = tl.load(place)
    tl.store(losses + at, tl.load(loss).to(losses.dtype.element_ty))
    tl.store(place, at + 1)


def record(losses: Tensor, loss: Tensor, place: Tensor) -> None:
    """Writes a scalar into ``losses`` (N,) at ``place`` (1,) int64, and adds 1 to the place."""
    with on_device(losses):
        record_kernel[(1,)](losses, loss, place, num_warps=1)
