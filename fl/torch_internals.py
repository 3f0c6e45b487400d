"""Internals of torch, which may change with any release: a module's dicts, and fused kernels.

``nn.Module`` has its weights, buffers, layers and hooks in dicts among its attributes. Torch
offers no copy that shares the weights: `copy.copy` shares those dicts, so a layer exchanged in the
copy would be exchanged in the original too, and `copy.deepcopy` copies every number.

The fused kernels are those that torch.optim calls. Torch offers them nowhere else, and importing
torch.optim takes a process a second and 90 MiB. The functions over lists of tensors run one kernel
for all of them, where a loop would run one for each. The product is the operator behind torch's own
compiled Linear: with a public one torch decides whether oneDNN or MKL computes it.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

TESTED_WITH = "2.14.1"
"""The version that tests/fl/test_torch_internals.py last checked this file with."""

Model = TypeVar("Model", bound=nn.Module)


def shell(model: Model) -> Model:
    """A module with the same weights, buffers and layers, which can be exchanged in it alone."""
    twin = model.__class__.__new__(model.__class__)
    # Lists too: a recurrent layer has a second list of its weights.
    own = {n: v.copy() if isinstance(v, dict | list) else v for n, v in vars(model).items()}
    twin.__dict__ = own
    return twin


def sgd_step(
    parameters: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    *,
    lr: float | Tensor,
    momentum: float,
    weight_decay: float,
    is_first: bool,
) -> None:
    """A step of SGD in place; ``velocities`` are empty without momentum.

    On the first step a velocity is the gradient, whatever it was before.
    """
    torch._fused_sgd_(
        parameters,
        gradients,
        velocities,
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=is_first,
    )


def adam_step(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: Tensor,
    *,
    lr: float | Tensor,
    betas: tuple[float, float],
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> None:
    """A step of Adam in place, the one whose number, counted from 1, is in the scalar ``steps``;
    with ``decoupled`` weight decay it is AdamW's."""
    fused = torch._fused_adamw_ if decoupled else torch._fused_adam_
    fused(
        parameters,
        gradients,
        means,
        squares,
        [],
        [steps] * len(parameters),
        lr=lr,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=weight_decay,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def add_differences(
    targets: Sequence[Tensor], ends: Sequence[Tensor], starts: Sequence[Tensor], factor: float
) -> None:
    """Adds ``factor (end - start)`` to each target, in place."""
    drift = torch._foreach_sub(list(ends), list(starts))
    torch._foreach_add_(list(targets), drift, alpha=factor)


def add(targets: Sequence[Tensor], added: Sequence[Tensor]) -> None:
    """Adds a tensor to each target, in place."""
    torch._foreach_add_(list(targets), list(added))


def onednn_product(a: Tensor, b: Tensor, add: Tensor | None) -> Tensor:
    """oneDNN's ``a b + add`` on a CPU: a (n, k), b (k, m), add (m,)."""
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), add, "none", [], "")
