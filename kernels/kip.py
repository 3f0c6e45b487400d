"""Kernel ridge regression with the tangent kernel: the loss of Kernel Inducing Points.

Nguyen et al., "Dataset Meta-Learning from Kernel Ridge-Regression", ICLR 2021: from a small support
(X_s, y_s) the targets' labels are predicted as K_ts (K_ss + λ I)⁻¹ y_s, λ = ridge · tr(K_ss) / N,
and the support is learned by the gradient of the loss. K is `tangent_kernel`, with its defaults.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.support_kernels import support_kernels
from kernels.tangent_layers import Network, refuse_graph

RIDGE = 1e-6
DEPTH = 4


def centred(labels: Tensor, num_classes: int) -> Tensor:
    """One-hot rows minus 1 / classes, so that each sums to 0.

    Args:
        labels: (..., N) int64, in [0, num_classes).

    Returns:
        (..., N, num_classes) float64.

    Raises:
        ValueError: a label out of range, or labels that are not integers.
    """
    if labels.dtype != torch.int64:
        raise ValueError(f"labels must be int64, got {labels.dtype}")
    if not ((labels >= 0) & (labels < num_classes)).all():
        raise ValueError(f"labels must be in [0, {num_classes})")
    return F.one_hot(labels, num_classes).double() - 1 / num_classes


def predictions(
    support: Tensor,
    support_labels: Tensor,
    targets: Tensor,
    *,
    ridge: float = RIDGE,
    depth: int = DEPTH,
) -> Tensor:
    """The targets' labels: K_ts (K_ss + λ I)⁻¹ y_s. Differentiable once, by all three tensors.

    Args:
        support: (N, ...) floating point, any shape of a sample; of B clients (B, N, ...).
        support_labels: (N, C), as `centred` gives them; of B clients (B, N, C).
        targets: (M, ...) or (B, M, ...).
        ridge: λ as a share of the mean of K_ss's diagonal, above 0.
        depth: hidden layers of the network.

    Returns:
        (M, C) or (B, M, C) float64.

    Raises:
        ValueError: shapes, types or devices that do not fit, no support, targets or features, a
            ridge that is not above 0 or so small that K_ss is singular, NaN or infinity.
    """
    _refuse_unfit(support, support_labels, targets, ridge)
    x, z = (t.flatten(support_labels.dim() - 1).double() for t in (support, targets))
    kernels = support_kernels(x, z, Network(depth), ridge)
    given = {"support": support, "support_labels": support_labels, "targets": targets}
    try:
        found: Tensor = _Regression.apply(*kernels, support_labels.double())
    except torch.linalg.LinAlgError:
        raise _no_numbers(given, kernels, ridge) from None
    if not math.isfinite(float(found.detach().sum())):
        raise _no_numbers(given, kernels, ridge)
    return found


def kip_loss(
    support: Tensor,
    support_labels: Tensor,
    targets: Tensor,
    target_labels: Tensor,
    *,
    ridge: float = RIDGE,
    depth: int = DEPTH,
) -> Tensor:
    """Half the mean, over targets and classes, of (`predictions` − labels)².

    Args:
        target_labels: (M, C) or (B, M, C), as `centred` gives them. The others are those of
            `predictions`, and so are the errors.

    Returns:
        A number, or (B,) of them: their sum has the gradient of each client's own. float64.
    """
    found = predictions(support, support_labels, targets, ridge=ridge, depth=depth)
    _refuse_labels(found, target_labels)
    return (found - target_labels).square().mean((-2, -1)) * 0.5


def kip_accuracy(
    support: Tensor,
    support_labels: Tensor,
    targets: Tensor,
    target_labels: Tensor,
    *,
    ridge: float = RIDGE,
    depth: int = DEPTH,
) -> Tensor:
    """The share of targets whose prediction is largest where their labels are.

    Takes and raises what `kip_loss` does; returns a number in [0, 1], or (B,) of them, float64.
    """
    with torch.no_grad():
        found = predictions(support, support_labels, targets, ridge=ridge, depth=depth)
    _refuse_labels(found, target_labels)
    return (found.argmax(-1) == target_labels.argmax(-1)).double().mean(-1)


class _Regression(torch.autograd.Function):
    """K_ts A⁻¹ y by a Cholesky factor, which the gradients use again.

    With α = A⁻¹ y and the gradient G of the result, β = A⁻¹ K_tsᵀ G is the gradient by y; those by
    A and K_ts are −β αᵀ and G αᵀ.
    """

    @staticmethod
    def forward(ctx: Any, inside: Tensor, across: Tensor, labels: Tensor) -> Tensor:
        factor = torch.linalg.cholesky(inside)
        solved = torch.cholesky_solve(labels, factor)
        ctx.save_for_backward(across, factor, solved)
        return across @ solved

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        refuse_graph()
        across, factor, solved = ctx.saved_tensors
        by_labels = torch.cholesky_solve(across.mT @ gradient, factor)
        return by_labels.neg() @ solved.mT, gradient @ solved.mT, by_labels


def _refuse_unfit(support: Tensor, support_labels: Tensor, targets: Tensor, ridge: float) -> None:
    given = (support, support_labels, targets)
    dims = support_labels.dim()
    fits = (
        dims in (2, 3)
        and support.dim() >= dims
        and support.shape[: dims - 1] == support_labels.shape[:-1]
        and support.shape[: dims - 2] == targets.shape[: dims - 2]
        and support.shape[dims - 1 :] == targets.shape[dims - 1 :]
    )
    if not fits or not all(t.numel() for t in given):
        shapes = ", ".join(str(tuple(t.shape)) for t in given)
        what = "is empty" if fits else "does not fit"
        raise ValueError(f"of support, its labels and targets one {what}: {shapes}")
    if not all(t.is_floating_point() for t in given):
        types = ", ".join(str(t.dtype) for t in given)
        raise ValueError(f"support, labels and targets must be floating point, got {types}")
    if not support.device == support_labels.device == targets.device:
        devices = ", ".join(str(t.device) for t in given)
        raise ValueError(f"support, labels and targets must share a device, got {devices}")
    if not 0 < ridge < math.inf:
        raise ValueError(f"ridge must be above 0, got {ridge}")


def _refuse_labels(found: Tensor, target_labels: Tensor) -> None:
    if target_labels.shape != found.shape or target_labels.device != found.device:
        raise ValueError(
            f"target labels must be {tuple(found.shape)} on {found.device}, "
            f"got {tuple(target_labels.shape)} on {target_labels.device}"
        )
    if not target_labels.isfinite().all():
        raise ValueError("target_labels has NaN or infinite values")


def _no_numbers(
    given: dict[str, Tensor], kernels: tuple[Tensor, Tensor], ridge: float
) -> ValueError:
    """Why there is no prediction."""
    for name, tensor in given.items():
        if not tensor.isfinite().all():
            return ValueError(f"{name} has NaN or infinite values")
    if not all(kernel.isfinite().all() for kernel in kernels):
        return ValueError("values are too large: their kernel overflows")
    return ValueError(f"the kernel is singular: ridge {ridge} is too small")
