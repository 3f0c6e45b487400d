"""Tangent kernels of a support and of targets with it, each pair of rows once."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kernels import tangent_layers
from kernels.tangent_layers import Layer, Network


def support_kernels(
    support: Tensor, targets: Tensor, network: Network, ridge: float
) -> tuple[Tensor, Tensor]:
    """K_ss + ridge · tr(K_ss)/N · I and K_ts, differentiable once.

    The gradient of K_ts where a target equals a row of the support is `tangent_kernel`'s. In K_ss
    a row with itself is no such place: there Θ is smooth, and its gradient is whole.

    Args:
        support: (N, d) or (B, N, d), float64.
        targets: (M, d) or (B, M, d), float64.

    Returns:
        (N, N) or (B, N, N), symmetric, and (M, N) or (B, M, N).
    """
    kernels: tuple[Tensor, Tensor] = _SupportKernels.apply(support, targets, network, ridge)
    return kernels


@dataclass(frozen=True)
class _Pairs:
    """Where pairs are: those of two rows of the support, and after them targets with the support.

    A pair's first row is the later one of the support, or the target.
    """

    inside: int
    """Number of the support's pairs, N (N - 1) / 2."""
    rows: Tensor
    """(2P,) first row of every pair, among support and targets, and then second row."""
    below: Tensor
    """(inside,) place in the flat (N, N), below the diagonal."""
    above: Tensor
    """(inside,) the same above it."""
    whole: Tensor
    """(N·N,) number of a place's pair, and from ``inside`` on of a row with itself."""
    sides: Tensor
    """(N·N,) like ``whole``, but above the diagonal later by ``inside``, and so is the diagonal."""


@lru_cache(maxsize=16)
def _pairs(n: int, m: int, device: torch.device) -> _Pairs:
    later, earlier = torch.tril_indices(n, n, -1, device=device)
    inside = len(later)
    below, above = later * n + earlier, earlier * n + later
    number = torch.arange(inside, device=device)
    whole = torch.empty(n * n, dtype=torch.int64, device=device)
    whole[below] = whole[above] = number
    whole[:: n + 1] = torch.arange(inside, inside + n, device=device)
    sides = whole + inside
    sides[below] = number
    target = torch.arange(n, n + m, device=device).repeat_interleave(n)
    rows = torch.cat((later, target, earlier, torch.arange(n, device=device).repeat(m)))
    return _Pairs(inside, rows, below, above, whole, sides)


class _SupportKernels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, support: Tensor, targets: Tensor, network: Network, ridge: float
    ) -> tuple[Tensor, Tensor]:
        n, m = support.shape[-2], targets.shape[-2]
        pairs = _pairs(n, m, support.device)
        gram = support @ support.mT
        inside = gram.flatten(-2).index_select(-1, pairs.below)
        across = (targets @ support.mT).flatten(-2)
        squares = (gram.diagonal(dim1=-2, dim2=-1), targets.square().sum(-1))
        products = torch.cat((inside, across, *squares), -1)
        start = network.start(products, support.shape[-1])
        k, q = start[..., : -(n + m)], start[..., -(n + m) :]
        left, right = q.index_select(-1, pairs.rows).chunk(2, -1)
        layers = list[Layer]() if any(ctx.needs_input_grad) else None
        kernel = tangent_layers.forward(k, left, right, network, layers)
        own = q[..., :n] * network.diagonal_slope + network.diagonal_start
        own.add_(own.mean(-1, keepdim=True), alpha=ridge)
        ctx.save_for_backward(support, targets)
        ctx.pairs, ctx.network, ctx.ridge, ctx.layers = pairs, network, ridge, layers
        inside = _square(kernel[..., : pairs.inside], own, pairs)
        return inside, kernel[..., pairs.inside :].unflatten(-1, (m, n))

    @staticmethod
    def backward(ctx: Any, by_support: Tensor, by_targets: Tensor) -> tuple[Tensor | None, ...]:
        tangent_layers.refuse_graph()
        support, targets = ctx.saved_tensors
        pairs: _Pairs = ctx.pairs
        network: Network = ctx.network
        n, m = support.shape[-2], targets.shape[-2]
        scale = network.weight_variance / support.shape[-1]
        own = by_support.diagonal(dim1=-2, dim2=-1)
        own = own.add(own.sum(-1, keepdim=True), alpha=ctx.ridge / n)
        own *= network.diagonal_slope
        flat = by_support.flatten(-2)
        inside = flat.index_select(-1, pairs.below) + flat.index_select(-1, pairs.above)
        by_kernel = torch.cat((inside, by_targets.flatten(-2)), -1)
        by_k, left, right = tangent_layers.backward(by_kernel, ctx.layers, network)
        sides = torch.cat((left[..., : pairs.inside], right[..., : pairs.inside], own), -1)
        by_q = sides.index_select(-1, pairs.sides).unflatten(-1, (n, n)).sum(-1)
        by_q += right[..., pairs.inside :].unflatten(-1, (m, n)).sum(-2)
        # q is σ_w² |x|² / d + σ_b²: on the diagonal of a matrix, twice its gradient.
        by_k *= scale
        weights = _square(by_k[..., : pairs.inside], by_q.mul_(2 * scale), pairs)
        across = by_k[..., pairs.inside :].unflatten(-1, (m, n))
        to_support = _plus_product(weights @ support, across.mT, targets)
        to_targets = None
        if ctx.needs_input_grad[1]:
            by_q = left[..., pairs.inside :].unflatten(-1, (m, n)).sum(-1, keepdim=True)
            to_targets = _plus_product(2 * scale * by_q * targets, across, support)
        return to_support, to_targets, None, None


def _plus_product(into: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """``into`` += left @ right."""
    return into.addmm_(left, right) if into.dim() == 2 else into.baddbmm_(left, right)


def _square(inside: Tensor, diagonal: Tensor, pairs: _Pairs) -> Tensor:
    """The symmetric (..., N, N) of pairs (..., inside) and a diagonal (..., N)."""
    n = diagonal.shape[-1]
    both = torch.cat((inside, diagonal), -1)
    return both.index_select(-1, pairs.whole).unflatten(-1, (n, n))
