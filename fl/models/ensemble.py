"""Several classifiers as one: the mean of their logits."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """Sum_k w_k f_k(x) / sum_k w_k over its members' logits; all weights are equal at first.

    Members may be of different architectures. They are part of the module, so that ``eval``,
    ``to`` and hooks reach them.
    """

    weights: Tensor

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        count = len(self.members)
        self.register_buffer("weights", torch.full((count,), 1 / count))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes) of images (B, C, H, W)."""
        return weighted_mean(self.each(images), self.weights)

    def each(self, images: Tensor) -> Tensor:
        """Every member's logits, (members, B, classes)."""
        return torch.stack([member(images) for member in self.members])


def unwrapped(model: nn.Module) -> nn.Module:
    """The model; of an ensemble of one its member."""
    if isinstance(model, Ensemble) and len(model.members) == 1:
        return model.members[0]
    return model


def weighted_mean(logits: Tensor, weights: Tensor) -> Tensor:
    """(B, classes) of members' logits (members, B, classes) and weights (members,); of answers with
    more axes, (B, places, tokens), alike."""
    mean = torch.einsum("k,kbc->bc", weights / weights.sum(), logits.flatten(2))
    return mean.view(logits.shape[1:])
