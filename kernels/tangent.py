"""The neural tangent kernel of a fully connected ReLU network."""

from typing import Any

import torch
from torch import Tensor

from kernels import tangent_layers
from kernels.tangent_layers import Layer, Network

TINY = torch.finfo(torch.float64).tiny


def tangent_kernel(
    x: Tensor,
    y: Tensor,
    *,
    depth: int = 4,
    weight_variance: float = 2.0,
    bias: float = 0.1,
) -> Tensor:
    """Θ(x, y), for every pair of rows.

    Rows of d features begin as k = σ_w² ⟨x, y⟩ / d + σ_b² and Θ = k, and each hidden layer takes
    them further (Jacot et al., 2018). With θ = arccos(k_xy / √(k_xx k_yy)) it is

        k ← σ_w² √(k_xx k_yy) (sin θ + (π − θ) cos θ) / 2π + σ_b²,    Θ ← k + σ_w² Θ (π − θ) / 2π.

    Differentiable once. Where a row of ``x`` equals one of ``y``, Θ has a cusp, like |x − y|: the
    gradient there is the mean of the slopes of both sides, and finite. Rows of an angle below 2^-24
    count as equal in that, and Θ of such has seven digits; of equal rows it has all.

    Args:
        x: (N, d) or (B, N, d); or images, (N, C, H, W) or (B, N, C, H, W). Floating point.
        y: M rows in the same form.
        depth: hidden layers, at least 1.
        weight_variance: σ_w².
        bias: σ_b, a standard deviation.

    Returns:
        (N, M) or (B, N, M), float64.

    Raises:
        ValueError: shapes, types or devices that do not fit, or a network that is none.
    """
    network = Network(depth, weight_variance, bias)
    left, right = rows(x, y)
    scale = weight_variance / left.shape[-1]
    squares = (z.square().sum(-1).mul(scale).add(network.offset) for z in (left, right))
    of_left, of_right = (q.clamp(min=TINY) for q in squares)
    k = (left @ right.mT).mul(scale).add(network.offset)
    kernel: Tensor = _Kernel.apply(k, of_left.unsqueeze(-1), of_right.unsqueeze(-2), network)
    return kernel


def rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both as float64, images as rows."""
    if x.dim() not in (2, 3, 4, 5) or x.dim() != y.dim():
        raise ValueError(
            f"x and y must both be rows or both images, got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    of_row = -1 if x.dim() < 4 else -3
    if x.shape[of_row:] != y.shape[of_row:] or x.shape[: of_row - 1] != y.shape[: of_row - 1]:
        raise ValueError(f"shapes do not fit: {tuple(x.shape)} and {tuple(y.shape)}")
    if not x.shape[of_row:].numel():
        raise ValueError(f"rows have no features: {tuple(x.shape)}")
    if not (x.is_floating_point() and y.is_floating_point()):
        raise ValueError(f"x and y must be floating point, got {x.dtype} and {y.dtype}")
    if x.device != y.device:
        raise ValueError(f"x is on {x.device}, y on {y.device}")
    return x.flatten(of_row).double(), y.flatten(of_row).double()


class _Kernel(torch.autograd.Function):
    """`tangent_layers.forward` of (..., N, M) with q of (..., N, 1) and (..., 1, M)."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, left: Tensor, right: Tensor, network: Network) -> Tensor:
        ctx.network = network
        ctx.layers = list[Layer]() if any(ctx.needs_input_grad) else None
        return tangent_layers.forward(k, left, right, network, ctx.layers)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tangent_layers.refuse_graph()
        return *tangent_layers.backward(gradient, ctx.layers, ctx.network), None
