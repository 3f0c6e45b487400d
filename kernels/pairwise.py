"""Squared distances of every sample to every other, for the distillation methods."""

import torch
from torch import Tensor

from kernels.groups import wide

NOISE = 2.0**-48  # sixteen roundings of float64


def pairwise_sq_distances(x: Tensor, y: Tensor) -> Tensor:
    """Squared Euclidean distances of the rows of ``x`` to the rows of ``y``.

    By the Gram matrix, |x|² + |y|² − 2 x·y, which loses digits where two rows are close beside
    their size. So the mean of ``y`` is subtracted from both first, and sums are float64: distances
    of rows 100,000 times closer than that mean still have five digits, and those of equal rows are
    exactly 0. Differentiable.

    Args:
        x: (B, N, F) or (N, F) floating point.
        y: (B, M, F) or (M, F), of the same type, on the same device.

    Returns:
        (B, N, M) or (N, M), at least float32.

    Raises:
        ValueError: shapes, types or devices that do not fit.
    """
    if x.dim() not in (2, 3) or x.dim() != y.dim():
        raise ValueError(
            f"x and y must both be (B, N, F) or (N, F), got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if x.shape[-1] != y.shape[-1] or x.shape[:-2] != y.shape[:-2]:
        raise ValueError(f"shapes do not fit: {tuple(x.shape)} and {tuple(y.shape)}")
    if x.dtype != y.dtype or not x.is_floating_point():
        raise ValueError(f"x and y must share a floating type, got {x.dtype} and {y.dtype}")
    if x.device != y.device:
        raise ValueError(f"x is on {x.device}, y on {y.device}")
    if x.dim() == 2:
        return pairwise_op(x.unsqueeze(0), y.unsqueeze(0)).squeeze(0)
    return pairwise_op(x, y)


@torch.library.custom_op(
    "onefold::pairwise_sq_distances", mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor"
)
def pairwise_op(x: Tensor, y: Tensor) -> Tensor:
    """(B, N, F) and (B, M, F) to (B, N, M)."""
    left, right = _centred(x, y)
    norms = left.square().sum(-1).unsqueeze(-1) + right.square().sum(-1).unsqueeze(-2)
    squares = torch.baddbmm(norms, left, right.mT, alpha=-2)
    squares = torch.where(squares > NOISE * norms, squares, 0)
    return squares.to(_result_type(x))


@pairwise_op.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], y.shape[1], dtype=_result_type(x))


def _backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
    """d|x_i − y_j|² is 2 (x_i − y_j) for x_i and the opposite for y_j."""
    x, y = ctx.saved_tensors  # type: ignore[attr-defined]
    left, right = _centred(x, y)
    grad = 2 * grad.to(left.dtype)
    grad_x = grad.sum(-1).unsqueeze(-1) * left - grad @ right
    grad_y = grad.sum(-2).unsqueeze(-1) * right - grad.mT @ left
    return grad_x.to(x.dtype), grad_y.to(y.dtype)


def _save(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor], output: Tensor
) -> None:
    ctx.save_for_backward(*inputs)


pairwise_op.register_autograd(_backward, setup_context=_save)


def _centred(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float64, minus the mean of ``y``'s rows (0 if it has none)."""
    left, right = x.to(wide(x.device)), y.to(wide(y.device))
    middle = right.sum(-2, keepdim=True) / max(1, right.shape[-2])
    return left - middle, right - middle


def _result_type(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
