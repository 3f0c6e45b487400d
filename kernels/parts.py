"""The samples of a filter: where they lie, and what is asked of them there."""

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.backends import grouping, resolve
from kernels.exact import TOO_LARGE, ordered_distances, unit_for
from kernels.groups import Groups, Sums, refuse_large_samples, refuse_unfit_samples

VISIT = 1 << 26  # elements of samples on the host that visit the device together: 256 MiB
TIED = 1 << 20  # elements taken to float64 together


class Local:
    """Samples (N, F) of C classes in this process; those on the host visit the device in turn.

    `fl.fusion.rank.RankParts` are a process's own of samples that are spread over several. What it
    answers to the filter is of all of them.
    """

    def __init__(
        self,
        flat: Tensor,
        labels: Tensor,
        num_classes: int,
        *,
        device: torch.device,
        backend: str = "auto",
    ) -> None:
        """``flat``: (N, F) float32, float16 or bfloat16, on the device or on the host."""
        self.flat, self.num_classes, self.num_features = flat, num_classes, flat.shape[1]
        self.labels = self.all_labels = labels.to(device).long()
        self._device, self._group = device, grouping(resolve(backend, device))
        self._all: Groups | None = None
        visiting = flat.device.type == "cpu" and device.type != "cpu"
        if len(flat) and not visiting:
            self._all = self._group(flat, self.labels, num_classes)

    def unit(self) -> float:
        """The unit for the largest value of all samples.

        Raises:
            ValueError: NaN or infinity, or so large that squared distances overflow.
        """
        largest = self.largest()
        if largest > TOO_LARGE:
            refuse_large_samples()
        return unit_for(largest)

    def largest(self) -> float:
        """The largest magnitude of all values, 0 without samples.

        Raises:
            ValueError: NaN or infinity.
        """
        if not len(self.flat):
            return 0.0
        low, high = self.flat.aminmax()
        largest = float(torch.maximum(-low, high))
        if not largest < torch.inf:
            refuse_unfit_samples(self.flat)
        return largest

    def sums(self, unit: float, *, whole: bool) -> Sums:
        """See :meth:`kernels.groups.Groups.sums`: a label out of range is not counted."""
        if self._all:
            return self._all.sums(unit, whole=whole)
        classes = self.labels.new_zeros(self.num_classes)
        total = Sums(classes.unsqueeze(1).repeat(1, self.num_features), classes)
        for groups in self._visits():
            total += groups.sums(unit, whole=whole)
        return total

    def distances(self, centroids: Tensor) -> Tensor:
        """(N,) float32 distance of each sample to its class's row of (C, F)."""
        centroids = centroids.to(self._device)
        found = [groups.distances(centroids) for groups in self._visits()]
        return torch.cat(found) if found else centroids.new_empty(0)

    def ordered_distances(self, numbers: Tensor, centroids: Tensor) -> Tensor:
        """See :func:`kernels.exact.ordered_distances`, of the samples ``numbers``, ascending."""
        centroids, found = centroids.to(self._device), []
        for some in numbers.split(max(1, TIED // self.num_features)):
            samples = self.flat[some.to(self.flat.device)].to(self._device)
            centres = centroids[self.labels[some.to(self._device)]]
            found.append(ordered_distances(samples, centres))
        return torch.cat(found) if found else centroids.new_empty(0)

    def _visits(self) -> Iterator[Groups]:
        if self._all:
            yield self._all
        elif len(self.flat):
            rows = max(1, VISIT // self.num_features)
            for some, labels in zip(self.flat.split(rows), self.labels.split(rows), strict=True):
                yield self._group(some.to(self._device), labels, self.num_classes)
