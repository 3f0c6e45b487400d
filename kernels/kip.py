"""Kernel ridge regression with a neural tangent kernel, as Kernel Inducing Points has it.

Nguyen et al., "Dataset Meta-Learning from Kernel Ridge-Regression", ICLR 2021: from a small support
(X_s, y_s) the targets' labels are predicted as K_ts (K_ss + λ I)⁻¹ y_s, λ = ridge · tr(K_ss) / N,
and the support is learned by the gradient of a loss of them. All in float64, by autograd.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

WEIGHT_VARIANCE, BIAS_VARIANCE = 2.0, 0.01
"""Variances of the network's weights and biases."""
NOISE = 2.0**-48  # of cos² θ, sixteen roundings of float64: rows as parallel as that count as such


def centred(labels: Tensor, num_classes: int) -> Tensor:
    """One-hot rows minus 1 / classes, which sum to 0: (N,) int64 to (N, classes) float64."""
    return F.one_hot(labels, num_classes).double() - 1 / num_classes


FLAWS = (
    "",
    "support or targets hold NaN, infinity or values that are too large",
    "the kernel is singular: the ridge is too small",
)
"""What can be wrong with predictions, by number; 0 is nothing."""


def predictions(
    support: Tensor, support_labels: Tensor, targets: Tensor, *, ridge: float, depth: int
) -> tuple[Tensor, Tensor]:
    """The targets' labels, K_ts (K_ss + λ I)⁻¹ y_s, and what is wrong with them. Nothing is read
    back from the device.

    Args:
        support: (N, ...) floating point, any shape of a sample.
        support_labels: (N, C), as `centred` gives them.
        targets: (M, ...).
        ridge: λ as a share of the mean of K_ss's diagonal, above 0.
        depth: hidden layers of the network.

    Returns:
        The labels, (M, C) float64, and a number of `FLAWS`, () int64: NaN or infinity in the
        tensors or the kernel, or a ridge so small that K_ss is singular.
    """
    inside, across = (tangent_kernel(z, support, depth) for z in (support, targets))
    is_finite = inside.isfinite().all() & across.isfinite().all()
    eye = torch.eye(len(inside), dtype=inside.dtype, device=inside.device)
    shift = ridge * inside.diagonal().mean() * eye
    factor, failed = torch.linalg.cholesky_ex(inside + shift)
    flaw = torch.where(is_finite, 2 * (failed != 0), 1)
    return across @ torch.cholesky_solve(support_labels.double(), factor), flaw


def tangent_kernel(x: Tensor, y: Tensor, depth: int) -> Tensor:
    """Θ(x, y) of a fully connected ReLU network, for every pair of rows.

    Rows of d features begin as k = σ_w² ⟨x, y⟩ / d + σ_b² and Θ = k, and each hidden layer takes
    them further (Jacot et al., 2018). With θ = arccos(k_xy / √(k_xx k_yy)) it is

        k ← σ_w² √(k_xx k_yy) (sin θ + (π − θ) cos θ) / 2π + σ_b²,    Θ ← k + σ_w² Θ (π − θ) / 2π.

    Where a row of ``x`` equals one of ``y``, Θ has a cusp, like |x − y|: the gradient there is the
    mean of the slopes of both sides.

    Args:
        x: (N, ...), floating point.
        y: (M, ...).
        depth: hidden layers, at least 1.

    Returns:
        (N, M) float64.
    """
    x, y = x.flatten(1).double(), y.flatten(1).double()
    scale = WEIGHT_VARIANCE / x.shape[1]
    left = scale * x.square().sum(1, keepdim=True) + BIAS_VARIANCE
    right = scale * y.square().sum(1) + BIAS_VARIANCE
    kernel = k = scale * x @ y.T + BIAS_VARIANCE
    for _ in range(depth):
        square = left * right - k * k * (1 + NOISE)
        parallel = square <= 0
        # The root is taken of 1 where rows are parallel, as its slope at 0 is infinite.
        sine = torch.where(parallel, 0.0, torch.where(parallel, 1.0, square).sqrt())
        active = WEIGHT_VARIANCE * (math.pi - torch.atan2(sine, k)) / (2 * math.pi)
        k = WEIGHT_VARIANCE * sine / (2 * math.pi) + active * k + BIAS_VARIANCE
        kernel = k + active * kernel
        left, right = (WEIGHT_VARIANCE / 2 * q + BIAS_VARIANCE for q in (left, right))
    return kernel
