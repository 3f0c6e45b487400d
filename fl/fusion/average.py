"""The plain average of models (Eq. 4)."""

from collections.abc import Sequence

import torch
from torch import nn

from fl.wire import Tensors


def average_states(states: Sequence[Tensors]) -> Tensors:
    """w_0 = (1 / |K_C|) sum_k w_k, unweighted, over states of one architecture.

    Summed in float64, client by client; integer buffers (BatchNorm's batch counter) are averaged
    and rounded down. Weights that did not start from the same point average to nothing useful.
    """
    mean = {}
    for name, first in states[0].items():
        total = torch.zeros_like(first, dtype=torch.float64)
        for state in states:
            total += state[name]
        mean[name] = (total / len(states)).to(first.dtype)
    return mean


def average_into(model: nn.Module, states: Sequence[Tensors]) -> nn.Module:
    """Loads the average of ``states`` into ``model`` and returns it."""
    model.load_state_dict(average_states(states))
    return model
