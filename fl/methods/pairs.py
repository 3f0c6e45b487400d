"""Who has learned both of two classes decides between them.

A classifier that never saw a 6 calls it a 2, and may hold most twos. One that has learned both
tells them apart, however few it has seen of all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl.fusion.voting import elected

LEAST = 1e-4
"""The smallest share of a class in a pair."""
ROWS = 256
"""Samples at a time; each takes classes x classes numbers."""


@dataclass(frozen=True)
class Expert:
    """What a model says of samples, and how many of each class it has learned."""

    counts: Tensor
    """(classes,)."""
    logits: Tensor
    """(N, classes); the correction for its own class frequencies is taken off."""

    def both(self) -> Tensor:
        """Samples of the rarer of two classes, (classes, classes): m of Eq. 3."""
        counts = self.counts.float()
        return torch.minimum(counts.unsqueeze(1), counts)


@dataclass(frozen=True)
class Poll:
    """What has been said of some samples."""

    votes: Tensor
    """v (N, classes), the sum of all voters'."""
    experts: tuple[Expert, ...] = ()

    def heard(self, votes: Tensor, expert: Expert) -> "Poll":
        """The poll with one voter more."""
        return Poll(self.votes + votes, (*self.experts, expert))

    def shares(self, half: float) -> Tensor:
        """q (N, classes), Eq. 3 of docs/method.md: of each class the product of its shares in all
        pairs.

        In a pair, experts weigh as many samples as they have of the rarer class, and the votes
        ``half`` samples: at so many, the experts decide half of it.
        """
        return torch.cat([_shares(votes, told, half) for votes, told in self._rows()])

    def _rows(self) -> Iterator[tuple[Tensor, list[tuple[Tensor, Tensor]]]]:
        weights = [expert.both() for expert in self.experts]
        for first in range(0, len(self.votes), ROWS):
            rows = slice(first, first + ROWS)
            logits = [expert.logits[rows] for expert in self.experts]
            yield self.votes[rows], list(zip(logits, weights, strict=True))


def _shares(votes: Tensor, told: Sequence[tuple[Tensor, Tensor]], half: float) -> Tensor:
    claimed, _ = elected(votes)
    total = half * claimed.unsqueeze(2) / (claimed.unsqueeze(2) + claimed.unsqueeze(1))
    weight = torch.tensor(half)
    for logits, both in told:
        total += both * torch.sigmoid(logits.unsqueeze(2) - logits.unsqueeze(1))
        weight = weight + both
    share = (total / weight).clamp(min=LEAST).log()
    share.diagonal(dim1=1, dim2=2).zero_()
    return share.sum(2).softmax(1)
