"""What benchmarks/kip.py compares with: KIP's loss as it is written, and a step's bare products."""

import math

import torch
from torch import Tensor

from kernels.kip import RIDGE


def plain_loss(
    support: Tensor, support_labels: Tensor, targets: Tensor, target_labels: Tensor, depth: int
) -> Tensor:
    """`kernels.kip_loss` of float64 rows."""
    inside = plain_kernel(support, support, depth)
    shift = RIDGE * inside.trace() / len(support)
    inside = inside + shift * torch.eye(len(support), dtype=support.dtype)
    solved = torch.cholesky_solve(support_labels, torch.linalg.cholesky(inside))
    found = plain_kernel(targets, support, depth) @ solved
    return 0.5 * ((found - target_labels) ** 2).mean()


def plain_kernel(x: Tensor, y: Tensor, depth: int) -> Tensor:
    """`kernels.tangent_kernel` of float64 rows, cosines kept where the arccosine has a slope."""
    left = 2 * x.square().mean(1, keepdim=True) + 0.01
    right = 2 * y.square().mean(1) + 0.01
    kernel = k = 2 * x @ y.T / x.shape[1] + 0.01
    for _ in range(depth):
        norm = torch.sqrt(left * right)
        cosine = torch.clamp(k / norm, -1 + 1e-14, 1 - 1e-14)
        active = math.pi - torch.arccos(cosine)
        k = norm * (torch.sqrt(1 - cosine**2) + active * cosine) / math.pi + 0.01
        kernel = k + kernel * active / math.pi
        left, right = left + 0.01, right + 0.01
    return kernel


def bare_products(x: Tensor, y: Tensor, targets: Tensor, inside: Tensor) -> Tensor:
    """Forward and backward, each product once: (N, d) like a gradient.

    ``x`` and ``y`` are the support's rows (N, d) and labels (N, C), ``targets`` (M, d), and
    ``inside`` is any positive definite (N, N), float64.
    """
    _, across = x @ x.T, targets @ x.T
    factor = torch.linalg.cholesky(inside)
    solved = torch.cholesky_solve(y, factor)
    gradient = across @ solved
    by_labels = torch.cholesky_solve(across.T @ gradient, factor)
    by_inside, by_across = by_labels @ solved.T, gradient @ solved.T
    return (by_inside @ x).addmm_(by_across.T, targets)
