"""The average of models (Eq. 4), plain or weighted."""

from collections.abc import Iterable
from itertools import repeat

import torch
from torch import nn

from fl.exchange import Tensors
from fl.models.state import load_sent


def average_states(
    states: Iterable[Tensors], weights: Iterable[int] = repeat(1), *, partial: bool = False
) -> Tensors:
    """w_0 = sum_k n_k w_k / sum_k n_k over states of one architecture; without weights the mean.

    Summed in float64, client by client, so that states may come from a generator and only one is
    held at a time. With ``partial`` states may lack names: a tensor is averaged over those that
    have it. BatchNorm's running means and variances are averaged like weights, which ignores how
    far the clients' means lie apart; its integer batch counter is averaged and rounded down.
    The average is useless if the clients did not start from the same weights.
    """
    total: Tensors = {}
    types: dict[str, torch.dtype] = {}
    counts: dict[str, int] = {}
    for state, weight in zip(states, weights, strict=False):
        if counts and not partial and state.keys() != counts.keys():
            raise KeyError(f"states of one average differ: {sorted(state.keys() ^ counts.keys())}")
        for name, tensor in state.items():
            if name not in total:
                types[name], counts[name] = tensor.dtype, 0
                total[name] = torch.zeros_like(tensor, dtype=torch.float64)
            total[name] += weight * tensor.double()
            counts[name] += weight
    if not counts and not partial:
        raise ValueError("the average needs at least one state")
    return {name: (tensor / counts[name]).to(types[name]) for name, tensor in total.items()}


def average_into(
    model: nn.Module, states: Iterable[Tensors], weights: Iterable[int] = repeat(1)
) -> nn.Module:
    """Loads the average of what was sent of models into ``model`` and returns it."""
    load_sent(model, average_states(states, weights))
    return model
