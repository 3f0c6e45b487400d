"""What a model costs: parameters, and multiply-accumulates of a forward pass."""

import torch
from torch import Tensor, nn


def parameters(model: nn.Module) -> int:
    """The number of trainable and fixed parameters; buffers do not count."""
    return sum(p.numel() for p in model.parameters())


def macs(model: nn.Module, *inputs: Tensor) -> int:
    """Multiply-accumulates of one forward pass, counted by torch as it runs (meta device too)."""
    from torch.utils.flop_counter import FlopCounterMode  # imports triton, which few runs need

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    return counter.get_total_flops() // 2
