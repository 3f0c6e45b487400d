"""The tangent kernel's reference: its definition, a pair of rows after the other, in float64."""

import math

import torch
from torch import Tensor


def tangent_kernel(
    x: Tensor, y: Tensor, *, depth: int = 4, weight_variance: float = 2.0, bias: float = 0.1
) -> Tensor:
    """`kernels.tangent_kernel` by loops, of (N, ...) and (M, ...): (N, M) float64."""
    left, right = (z.flatten(1).double().tolist() for z in (x, y))
    pairs = [[of_pair(u, v, depth, weight_variance, bias**2) for v in right] for u in left]
    return torch.tensor(pairs, dtype=torch.float64).reshape(len(left), len(right))


def of_pair(u: list[float], v: list[float], depth: int, variance: float, offset: float) -> float:
    """Θ of two rows of d features; ``variance`` is σ_w², ``offset`` σ_b²."""
    k, left, right = (_start(a, b, variance, offset) for a, b in ((u, v), (u, u), (v, v)))
    kernel = k
    for _ in range(depth):
        norm = math.sqrt(left * right)
        # Near 1 a rounding of the cosine is an angle of 2^-26, and the rows may well be equal.
        parallel = math.isclose(k, norm, rel_tol=2.0**-49)
        cosine = 1.0 if parallel else max(-1.0, k / norm)
        angle = math.acos(cosine)
        arc = math.sin(angle) + (math.pi - angle) * cosine
        k = variance * norm * arc / (2 * math.pi) + offset
        kernel = k + variance * kernel * (math.pi - angle) / (2 * math.pi)
        left, right = (variance * q / 2 + offset for q in (left, right))
    return kernel


def _start(u: list[float], v: list[float], variance: float, offset: float) -> float:
    """σ_w² ⟨u, v⟩ / d + σ_b², the sum rounded once."""
    return variance * math.fsum(a * b for a, b in zip(u, v, strict=True)) / len(u) + offset
