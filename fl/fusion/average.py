"""The plain average of models (Eq. 4)."""

from collections.abc import Iterable

import torch
from torch import nn

from fl.wire import Tensors


def average_states(states: Iterable[Tensors]) -> Tensors:
    """w_0 = (1 / |K_C|) sum_k w_k, unweighted, over states of one architecture.

    Summed in float64, client by client, so that states may come from a generator and only one is
    held at a time; integer buffers (BatchNorm's batch counter) are averaged
    and rounded down. Weights that did not start from the same point average to nothing useful.
    """
    total: Tensors = {}
    types: dict[str, torch.dtype] = {}
    count = 0
    for state in states:
        for name, tensor in state.items():
            if count == 0:
                types[name] = tensor.dtype
                total[name] = torch.zeros_like(tensor, dtype=torch.float64)
            total[name] += tensor
        count += 1
    if count == 0:
        raise ValueError("the average needs at least one state")
    return {name: (tensor / count).to(types[name]) for name, tensor in total.items()}


def average_into(model: nn.Module, states: Iterable[Tensors]) -> nn.Module:
    """Loads the average of ``states`` into ``model`` and returns it."""
    model.load_state_dict(average_states(states))
    return model
