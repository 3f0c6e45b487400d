"""What a model costs: parameters, multiply-accumulates, and the count that papers print."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

BILINEAR_OPS = 11  # per output element, in thop's book-keeping


def parameters(model: nn.Module) -> int:
    """The number of trainable and fixed parameters; buffers do not count."""
    return sum(p.numel() for p in model.parameters())


def macs(model: nn.Module, *inputs: Tensor) -> int:
    """Multiply-accumulates of one forward pass, counted by torch as it runs (meta device too)."""
    from torch.utils.flop_counter import FlopCounterMode  # imports triton, which few runs need

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    return counter.get_total_flops() // 2


def profiler_ops(model: nn.Module, *inputs: Tensor) -> int:
    """Operations of one forward pass as the profiler thop counts them; FedMHO's Table 2 fits it.

    Multiply-accumulates of convolutions and linear layers, plus operations of adaptive pooling,
    bilinear enlargement and softmax. A transposed convolution is counted from its output as if it
    were an ordinary one, which overstates a stride of 2 fourfold.
    """
    total = 0

    def add(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        for kind, ops in _OPS.items():
            if isinstance(module, kind):
                total += ops(module, args[0], output)

    hooks = [module.register_forward_hook(add) for module in model.modules()]
    with torch.no_grad():
        model(*inputs)
    for hook in hooks:
        hook.remove()
    return total


def _conv_ops(module: Any, x: Tensor, y: Tensor) -> int:
    return y.numel() * (x.shape[1] // module.groups) * module.kernel_size[0] * module.kernel_size[1]


def _adaptive_pool_ops(module: Any, x: Tensor, y: Tensor) -> int:
    window = x.shape[2] / y.shape[2] * x.shape[3] / y.shape[3]
    return int((window + 1) * y.numel())


_OPS: dict[Any, Callable[[Any, Tensor, Tensor], int]] = {
    nn.Linear: lambda module, x, y: module.in_features * y.numel(),
    nn.Conv2d: _conv_ops,
    nn.ConvTranspose2d: _conv_ops,
    nn.AdaptiveAvgPool2d: _adaptive_pool_ops,
    nn.Upsample: lambda module, x, y: BILINEAR_OPS * y.numel(),
    # Exponentials and quotients of every class, and one addition fewer.
    nn.Softmax: lambda module, x, y: 3 * y.numel() - len(y),
}
