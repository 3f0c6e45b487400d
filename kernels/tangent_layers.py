"""The layers of the neural tangent kernel: its recursion over pairs of rows, and its gradients.

For a pair of rows let k be the covariance of what they are in a layer, q and q' its values of each
row with itself, Θ the tangent kernel, θ the angle, cos θ = k / √(q q'), and a = σ_w² / 2. One
hidden ReLU layer makes of them, with t = √(q q') sin θ = √(q q' − k²) and φ = π − θ,

    k ← (a/π) (t + φ k) + σ_b²,    Θ ← k + (a/π) φ Θ,    q ← a q + σ_b²,

the same as σ_w² √(q q') (sin θ + (π − θ) cos θ) / 2π + σ_b² and k + σ_w² Θ (π − θ) / 2π. Since
φ = arccos(−cos θ) = atan2(t, −k), what is stored here is −k and −Θ: that saves operations.

Gradients: ∂k/∂k = (a/π) φ and ∂k/∂ln√(q q') = (a/π) t for the new k, ∂φ/∂k = 1/t and
∂φ/∂ln√(q q') = −k/t. The first two are smooth. 1/t is infinite where rows are parallel: Θ has a
cusp there, like |x − y|. There 1/t counts as 0, which gives the mean of the slopes of both sides.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

NOISE = 2.0**-48  # of cos² θ, sixteen roundings of float64: rows as parallel as that count as such


@dataclass(frozen=True)
class Network:
    """A fully connected ReLU network of infinite width.

    Raises:
        ValueError: no hidden layer, a variance that is not above 0, a bias that is no number.
    """

    depth: int = 4
    """Hidden layers."""
    weight_variance: float = 2.0
    """The square of sigma_w."""
    bias: float = 0.1
    """sigma_b, a standard deviation."""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"need a hidden layer, got depth {self.depth}")
        if not (0 < self.weight_variance < math.inf and math.isfinite(self.bias)):
            raise ValueError(f"unfit weight variance {self.weight_variance} or bias {self.bias}")

    @property
    def gain(self) -> float:
        """a, the share of q that a layer passes on."""
        return self.weight_variance / 2

    @property
    def offset(self) -> float:
        """σ_b²."""
        return self.bias**2

    def start(self, products: Tensor, features: int) -> Tensor:
        """k before the first layer, of rows' inner products, which it overwrites."""
        return products.mul_(self.weight_variance / features).add_(self.offset)

    @property
    def diagonal_slope(self) -> float:
        """dΘ/dq of a row with itself: (depth + 1) a^depth."""
        return (self.depth + 1) * self.gain**self.depth

    @property
    def diagonal_start(self) -> float:
        """Θ of a row with itself is ``diagonal_slope`` · q, for q before all layers, and this."""
        q = kernel = 0.0
        for _ in range(self.depth):
            q = q * self.gain + self.offset
            kernel = q + self.gain * kernel
        return kernel


class Layer(NamedTuple):
    """What a layer was given and found, for its gradients; of the pairs' shape but left, right."""

    minus_k: Tensor
    minus_kernel: Tensor
    angle: Tensor
    """φ."""
    sine: Tensor
    """t."""
    slope: Tensor
    """1/t, and 0 where rows are parallel."""
    left: Tensor
    """q of the first rows."""
    right: Tensor
    """q' of the second rows."""


def forward(
    k: Tensor, left: Tensor, right: Tensor, network: Network, layers: list[Layer] | None
) -> Tensor:
    """Θ of every pair after all layers.

    Args:
        k: float64, of any shape, before the first layer.
        left: q of the pairs' first rows, above 0; its product with ``right`` has k's shape.
        right: q' of their second rows.
        layers: gets every layer, for `backward`; None keeps nothing.
    """
    ratio = network.gain / math.pi
    offset = torch.full((), network.offset, dtype=k.dtype, device=k.device)
    minus_offset = offset.neg()
    minus_k = minus_kernel = k.neg()
    for _ in range(network.depth):
        sine = left * right
        sine.addcmul_(minus_k, minus_k, value=-1 - NOISE).clamp_(min=0)
        slope = sine.rsqrt().nan_to_num_(nan=math.nan, posinf=0.0)
        sine.mul_(slope)
        angle = torch.atan2(sine, minus_k)
        if layers is not None:
            layers.append(Layer(minus_k, minus_kernel, angle, sine, slope, left, right))
        minus_k = torch.add(minus_offset, sine, alpha=-ratio).addcmul_(angle, minus_k, value=ratio)
        minus_kernel = torch.addcmul(minus_k, angle, minus_kernel, value=ratio)
        left, right = (torch.add(offset, q, alpha=network.gain) for q in (left, right))
    return minus_kernel.neg_()


def backward(
    gradient: Tensor, layers: list[Layer], network: Network
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by ``k``, ``left`` and ``right`` of `forward`, in their shapes.

    Args:
        gradient: by Θ, of the pairs' shape.
        layers: those that `forward` noted.
    """
    ratio = network.gain / math.pi
    # Both lack a factor ``ratio`` for every layer that they have passed.
    by_kernel = gradient.clone()
    by_minus_k = gradient.neg()
    by_left, by_right = (torch.zeros_like(q) for q in layers[0][-2:])
    for number, layer in reversed(list(enumerate(layers))):
        by_angle = torch.mul(by_kernel, layer.minus_kernel).mul_(layer.slope)
        by_scale = torch.mul(by_minus_k, layer.sine).addcmul_(by_angle, layer.minus_k)
        # d ln√(q q') is dq / 2q + dq' / 2q', and q is a^number times the first q, and a constant.
        share = -(ratio ** (network.depth - number)) * network.gain**number / 2
        by_left.addcdiv_(by_scale.sum_to_size(by_left.shape), layer.left, value=share)
        by_right.addcdiv_(by_scale.sum_to_size(by_right.shape), layer.right, value=share)
        by_minus_k = by_angle.addcmul_(by_minus_k, layer.angle)
        by_kernel.mul_(layer.angle)
        by_minus_k.sub_(by_kernel)
    return by_minus_k.mul_(-(ratio**network.depth)), by_left, by_right


def refuse_graph() -> None:
    """Refuses, within a backward pass, that second derivatives are prepared: they would be wrong.

    Raises:
        RuntimeError: the pass runs with ``create_graph``.
    """
    if torch.is_grad_enabled():
        raise RuntimeError("the tangent kernel is differentiable once, not with create_graph")
