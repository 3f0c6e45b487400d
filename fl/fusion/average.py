"""The average of models (Eq. 4), plain or weighted."""

from collections.abc import Iterable
from itertools import repeat

import torch
from torch import nn

from fl.wire import Tensors


def average_states(states: Iterable[Tensors], weights: Iterable[int] = repeat(1)) -> Tensors:
    """w_0 = sum_k n_k w_k / sum_k n_k over states of one architecture; without weights the mean.

    Summed in float64, client by client, so that states may come from a generator and only one is
    held at a time. BatchNorm's running means and variances are averaged like weights, which ignores
    how far the clients' means lie apart; its integer batch counter is averaged and rounded down.
    The average is useless if the clients did not start from the same weights.
    """
    total: Tensors = {}
    types: dict[str, torch.dtype] = {}
    count = 0
    for state, weight in zip(states, weights, strict=False):
        for name, tensor in state.items():
            if count == 0:
                types[name] = tensor.dtype
                total[name] = torch.zeros_like(tensor, dtype=torch.float64)
            total[name] += weight * tensor.double()
        count += weight
    if count == 0:
        raise ValueError("the average needs at least one state")
    return {name: (tensor / count).to(types[name]) for name, tensor in total.items()}


def average_into(
    model: nn.Module, states: Iterable[Tensors], weights: Iterable[int] = repeat(1)
) -> nn.Module:
    """Loads the average of ``states`` into ``model`` and returns it."""
    model.load_state_dict(average_states(states, weights))
    return model
