"""The samples of a filter, as a rank of several sees them: its own, and what all make of theirs."""

import torch
from torch import Tensor

from fl.fusion.group import Group
from kernels.groups import Sums
from kernels.parts import Local, class_thresholds


class RankParts:
    """:class:`kernels.parts.Parts` over a group; all ranks must ask for the same together.

    Ranks exchange their classes' sums, and a label and a distance for each sample: no samples.
    Each value is a rank's own and zero at the others, so that sums are exact.
    """

    def __init__(self, local: Local, group: Group, first: int, total: int) -> None:
        """``local``: this rank's samples, of which the first is number ``first`` of ``total``."""
        self._local, self._group = local, group
        self._first, self._total = first, total
        self.num_features = local.num_features
        self.labels = self._gather(local.labels)

    def largest(self) -> float:
        """See :meth:`kernels.parts.Parts.largest`."""
        found = torch.zeros(self._group.size, device=self.labels.device)
        found[self._group.rank] = self._local.largest()
        self._group.sum(found)
        return float(found.max())

    def sums(self, unit: float, *, whole: bool) -> Sums:
        """See :meth:`kernels.parts.Parts.sums`."""
        own = self._local.sums(unit, whole=whole)
        both = torch.cat((own.units, own.counts.unsqueeze(1)), 1)
        self._group.sum(both)
        return Sums(both[:, :-1], both[:, -1])

    def distances(self, centroids: Tensor) -> Tensor:
        """See :meth:`kernels.parts.Parts.distances`."""
        return self._gather(self._local.distances(centroids))

    def ordered_distances(self, numbers: Tensor, centroids: Tensor) -> Tensor:
        """See :meth:`kernels.parts.Parts.ordered_distances`."""
        own = numbers - self._first
        here = (own >= 0) & (own < len(self._local.labels))
        values = self._local.ordered_distances(own[here], centroids)
        found = values.new_zeros(len(numbers)).index_put((here,), values)
        self._group.sum(found)
        return found

    def thresholds(self, distances: Tensor, quotas: Tensor) -> Tensor:
        """See :meth:`kernels.parts.Parts.thresholds`."""
        return class_thresholds(distances, self.labels, quotas)

    def _gather(self, own: Tensor) -> Tensor:
        """All ranks' values, of which this rank has its own."""
        found = own.new_zeros(self._total)
        found[self._first : self._first + len(own)] = own
        self._group.sum(found)
        return found
