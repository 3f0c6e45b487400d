"""The distance filter of FedMHO (Algorithm 2): per class, keep the samples nearest the centre."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import backends, exact, groups

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
        self._device, self._group = device, backends.grouping(backends.resolve(backend, device))
        self._all: groups.Groups | None = None
        visiting = flat.device.type == "cpu" and device.type != "cpu"
        if len(flat) and not visiting:
            self._all = self._group(flat, self.labels, num_classes)

    def unit(self) -> float:
        """The unit for the largest value of all samples.

        Raises:
            ValueError: NaN or infinity, or so large that squared distances overflow.
        """
        largest = self.largest()
        if largest > exact.TOO_LARGE:
            groups.refuse_large_samples()
        return exact.unit_for(largest)

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
            groups.refuse_unfit_samples(self.flat)
        return largest

    def sums(self, unit: float, *, whole: bool) -> groups.Sums:
        """See :meth:`kernels.groups.Groups.sums`: a label out of range is not counted."""
        if self._all:
            return self._all.sums(unit, whole=whole)
        classes = self.labels.new_zeros(self.num_classes)
        total = groups.Sums(classes.unsqueeze(1).repeat(1, self.num_features), classes)
        for own in self._visits():
            total += own.sums(unit, whole=whole)
        return total

    def distances(self, centroids: Tensor) -> Tensor:
        """(N,) float32 distance of each sample to its class's row of (C, F)."""
        centroids = centroids.to(self._device)
        found = [own.distances(centroids) for own in self._visits()]
        return torch.cat(found) if found else centroids.new_empty(0)

    def ordered_distances(self, numbers: Tensor, centroids: Tensor) -> Tensor:
        """See :func:`kernels.exact.ordered_distances`, of the samples ``numbers``, ascending."""
        centroids, found = centroids.to(self._device), []
        for some in numbers.split(max(1, TIED // self.num_features)):
            samples = self.flat[some.to(self.flat.device)].to(self._device)
            centres = centroids[self.labels[some.to(self._device)]]
            found.append(exact.ordered_distances(samples, centres))
        return torch.cat(found) if found else centroids.new_empty(0)

    def _visits(self) -> Iterator[groups.Groups]:
        if self._all:
            yield self._all
        elif len(self.flat):
            rows = max(1, VISIT // self.num_features)
            for some, labels in zip(self.flat.split(rows), self.labels.split(rows), strict=True):
                yield self._group(some.to(self._device), labels, self.num_classes)


@dataclass(frozen=True)
class Filtered:
    """The result of the distance filter.

    ``indices`` (M,) int64: the kept samples, ascending. ``distances`` (N,) float32: of every
    sample to its class's centroid. ``centroids`` (num_classes, F) float32: zero for an empty class.
    """

    indices: Tensor
    distances: Tensor
    centroids: Tensor


def nearest_to_centroid(
    samples: Tensor,
    labels: Tensor,
    num_classes: int,
    keep: float,
    *,
    step: float | None = None,
    backend: str = "auto",
) -> Filtered:
    """Keeps the ``floor(keep * n_c)`` samples of each class nearest to the class's mean.

    K-means with one cluster has the mean as its centre, so no iteration is needed. Of equally
    distant samples the earlier ones stay, and a class that has samples keeps at least one. Which
    samples stay is the same on every backend and device.

    For the mean, values are rounded to at least 2**-18 of the largest. Of distances below 2**-48
    squares lose digits in float32: the distances, not the choice, are then rough.

    Args:
        samples: (N, ...) float32, float16 or bfloat16 (float64 is rounded to float32), on any
            device; everything after the first dimension is the feature.
        labels: (N,) integers in [0, num_classes), in any order, on the samples' device.
        num_classes: number of classes; some may be empty.
        keep: share to keep, in (0, 1]; 0.29 is taken as 29/100, not as the double below it.
        step: a power of two, if all values are known to be whole multiples of it and at most 2**18
            times as large. Then two passes less are needed.
        backend: "reference", "torch", "triton" (CUDA, or any device in Triton's interpreter), or
            "auto" for the fastest on the samples' device.

    Raises:
        ValueError: shapes or types that do not fit, ``keep`` or a label out of range, NaN or
            infinity (naming the first bad sample), samples whose squared distances overflow
            float32, or a backend that cannot run here.
    """
    flat = flatten(samples)
    _check(flat, labels, num_classes, keep)
    if backends.resolve(backend, flat.device) == "reference":
        return _reference(flat, labels, num_classes, keep)
    local = Local(flat, labels, num_classes, device=flat.device, backend=backend)
    return nearest_of(local, keep, step)


def nearest_of(parts: Local, keep: float, step: float | None = None) -> Filtered:
    """The filter on samples that may be spread over several processes; all else as above.

    The host waits for the device once, and once more for the largest value if there is no ``step``.
    """
    unit = parts.unit() if step is None else step
    sums = parts.sums(unit, whole=step is not None)
    centroids = exact.means(sums.units, sums.counts, unit)
    distances = parts.distances(centroids)
    if not len(distances):
        return Filtered(distances.new_empty(0, dtype=torch.int64), distances, centroids)
    quota = groups.quotas(sums.counts, keep)
    labels = parts.all_labels.clamp(0, len(quota) - 1)  # those out of range are refused below
    thresholds = exact.class_thresholds(distances, labels, sums.counts, quota)
    stay, tied = exact.separated(distances, labels, thresholds, quota, parts.num_features)
    # Read together: the host waits for a device at each read.
    num_labelled, num_finite, num_kept, num_tied = torch.stack(
        (sums.counts.sum(), (distances < torch.inf).sum(), quota.sum(), tied.sum())
    ).tolist()
    if num_labelled < len(distances):
        groups.refuse_unfit_labels(len(quota))
    if num_finite < len(distances):
        groups.refuse_large_samples()
    if num_tied:
        rows = exact.numbers(tied, num_tied)
        distant = parts.ordered_distances(rows, centroids).to(rows.device)
        exact.settle(stay, rows, distant, labels, quota)
    return Filtered(exact.numbers(stay, num_kept), distances, centroids)


def _reference(flat: Tensor, labels: Tensor, num_classes: int, keep: float) -> Filtered:
    """The reference backend: Algorithm 2 as a loop over the classes, in float64."""
    if not ((labels >= 0) & (labels < num_classes)).all():
        groups.refuse_unfit_labels(num_classes)
    samples = flat.double()
    if not torch.isfinite(samples).all():
        groups.refuse_unfit_samples(flat)
    largest = float(samples.abs().max()) if len(samples) else 0.0
    unit = exact.unit_for(largest)
    distances = samples.new_zeros(len(samples))
    centroids = samples.new_zeros(num_classes, samples.shape[1], dtype=torch.float32)
    numerator, denominator = groups.share(keep)
    kept = [labels.new_empty(0, dtype=torch.int64)]
    for c in range(num_classes):
        own = (labels == c).nonzero().squeeze(1)
        if len(own) == 0:
            continue
        units = (samples[own] / unit).round().long().sum(0)
        centroids[c] = units.double() / len(own) * unit
        distances[own] = exact.ordered_distances(samples[own], centroids[c].expand_as(samples[own]))
        stay = max(1, len(own) * numerator // denominator)
        kept.append(own[torch.sort(distances[own], stable=True).indices[:stay]])
    if largest > exact.TOO_LARGE or not torch.isfinite(distances.square().float()).all():
        groups.refuse_large_samples()
    return Filtered(torch.cat(kept).sort().values, distances.float(), centroids)


def flatten(samples: Tensor) -> Tensor:
    """(N, F) view of the samples, in a type that the backends take."""
    if not samples.is_floating_point():
        raise ValueError(f"samples must be floating point, got {samples.dtype}")
    if samples.dim() == 0:
        raise ValueError("samples must have a first dimension, got a scalar")
    flat = samples.detach()
    if samples.dim() != 2:
        flat = flat.flatten(1) if samples.dim() > 2 else flat.unsqueeze(1)
    if flat.shape[1] == 0:
        raise ValueError(f"samples have no features: {tuple(samples.shape)}")
    return flat if flat.dtype in (torch.float32, torch.float16, torch.bfloat16) else flat.float()


def _check(flat: Tensor, labels: Tensor, num_classes: int, keep: float) -> None:
    """Checks all that can be checked without looking at the values."""
    if labels.shape != flat.shape[:1]:
        raise ValueError(f"labels must be {tuple(flat.shape[:1])}, got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    if labels.device != flat.device:
        raise ValueError(f"labels are on {labels.device}, samples on {flat.device}")
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, got {num_classes}")
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be in (0, 1], got {keep}")
