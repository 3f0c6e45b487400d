"""Several classifiers as one: the mean of their logits, or what else is made of these."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """Sum_k w_k f_k(x) / sum_k w_k over its members' logits; all weights are equal at first.

    Members may be of different architectures. They are part of the module, so that ``eval``,
    ``to`` and hooks reach them.
    """

    weights: Tensor

    def __init__(self, members: Iterable[nn.Module], combine: "Combiner | None" = None) -> None:
        """``combine``: what makes one answer of theirs, in place of the mean."""
        super().__init__()
        self.members, self.combine = nn.ModuleList(members), combine
        count = len(self.members)
        self.register_buffer("weights", torch.full((count,), 1 / count))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes) of images (B, C, H, W)."""
        each, combine = self.each(images), self.combine
        return weighted_mean(each, self.weights) if combine is None else combine(each)

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
    shares = (weights / weights.sum()).to(logits.dtype)
    mean = torch.einsum("k,kbc->bc", shares, logits.flatten(2))
    return mean.view(logits.shape[1:])


class OpenVote(nn.Module):
    """The vote of classifiers that have one class more, the last: unknown (FedOV).

    log sum_k p_k(c | x) over members, of each class c but the unknown one.
    """

    def __init__(self, voters: int | None = None) -> None:
        """``voters``: so many vote, those for whom the sample is least unknown; all without it."""
        super().__init__()
        self.about = {"voters": voters}

    def forward(self, each: Tensor) -> Tensor:
        """Logits (B, classes) of the members' (members, B, classes + 1)."""
        probabilities = each.softmax(2)
        known, unknown = probabilities[..., :-1], probabilities[..., -1]
        voters = min(self.about["voters"] or len(each), len(each))
        if voters < len(each):
            chosen = unknown.topk(voters, dim=0, largest=False).indices
            known = known.gather(0, chosen.unsqueeze(2).expand(-1, -1, known.shape[2]))
        # A member that is sure of the unknown has nothing to say: no logarithm of zero.
        return known.sum(0).clamp(min=1e-30).log()


class Aggregator(nn.Module):
    """A small network that makes one answer of all members' logits (FENS); at first their mean.

    mean_k f_k(x) + W_2 relu(W_1 (f_1(x), ..., f_K(x))), or sum_k w_k * f_k(x) / K with a weight for
    each member and class.
    """

    weights: Tensor

    def __init__(self, members: int, classes: int, hidden: int) -> None:
        """``hidden``: units for each member; 0 for the weights alone."""
        super().__init__()
        self.about = {"members": members, "classes": classes, "hidden": hidden}
        self.register_buffer("weights", torch.full((members,), 1 / members))
        """Of the members in the mean; 0 of one that is missing."""
        if hidden:
            self.inner = nn.Linear(members * classes, members * hidden)
            self.outer = nn.Linear(members * hidden, classes)
            nn.init.zeros_(self.outer.weight)
            nn.init.zeros_(self.outer.bias)
        else:
            self.by_class = nn.Parameter(torch.ones(members, classes))

    def forward(self, each: Tensor) -> Tensor:
        """Logits (B, classes) of the members' (members, B, classes)."""
        if not self.about["hidden"]:
            return weighted_mean(each * self.by_class[:, None], self.weights)
        there = each * (self.weights > 0)[:, None, None]
        found: Tensor = self.outer(self.inner(there.transpose(0, 1).flatten(1)).relu())
        return weighted_mean(each, self.weights) + found


Combiner = OpenVote | Aggregator
"""What makes one answer of an ensemble's members': ``about`` are the arguments to build it anew."""
COMBINERS: dict[str, type[OpenVote] | type[Aggregator]] = {
    kind.__name__: kind for kind in (OpenVote, Aggregator)
}
