"""The filter in parts: the same bits however the samples are spread, and wherever they lie."""

from functools import reduce
from operator import add

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import Filtered, nearest_to_centroid, parts
from kernels.exact import rounded
from kernels.filter import nearest_of
from kernels.groups import Sums
from kernels.parts import Local
from tests.kernels.cases import CLASSES
from tests.pretended_gpu import pretended_gpus

CPU = torch.device("cpu")


class Cut:
    """Samples (N, F) cut at some positions, each part with a `Local` of its own."""

    def __init__(self, samples: Tensor, labels: Tensor, cuts: list[int]) -> None:
        self.parts = [
            Local(x, y, CLASSES, device=CPU)
            for x, y in zip(samples.tensor_split(cuts), labels.tensor_split(cuts), strict=True)
        ]
        self.ends = torch.tensor([0, *(len(part.labels) for part in self.parts)]).cumsum(0)
        self.labels, self.num_features = labels, samples.shape[1]
        self.tied = 0

    def largest(self) -> float:
        return max(part.largest() for part in self.parts)

    def sums(self, unit: float, *, whole: bool) -> Sums:
        return reduce(add, [part.sums(unit, whole=whole) for part in self.parts])

    def distances(self, centroids: Tensor) -> Tensor:
        return torch.cat([part.distances(centroids) for part in self.parts])

    def ordered_distances(self, numbers: Tensor, centroids: Tensor) -> Tensor:
        self.tied += len(numbers)
        own = [
            numbers[(numbers >= first) & (numbers < last)] - first
            for first, last in zip(self.ends, self.ends[1:], strict=False)
        ]
        each = zip(self.parts, own, strict=True)
        return torch.cat([part.ordered_distances(n, centroids) for part, n in each])


def draw(seed: int, count: int, features: int = 60) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    samples = torch.rand(count, features, generator=stream)
    return samples, torch.randint(CLASSES - 1, (count,), generator=stream)


def same(one: Filtered, other: Filtered) -> bool:
    return all(
        torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 80),
    cuts=st.lists(st.integers(0, 80), max_size=3).map(sorted),
    keep=st.sampled_from([0.3, 0.5, 0.8, 1.0]),
    scale=st.sampled_from([1.0, 1e-6, 1e6]),
)
def test_parts_give_the_bits_of_the_whole(
    seed: int, count: int, cuts: list[int], keep: float, scale: float
) -> None:
    samples, labels = draw(seed, count)
    whole = nearest_to_centroid(samples * scale, labels, CLASSES, keep)
    assert same(nearest_of(Cut(samples * scale, labels, cuts), keep), whole)


def test_near_ties_are_decided_across_parts() -> None:
    """Samples around one centre, as far as each other but for the last bits."""
    stream = torch.Generator().manual_seed(0)
    half = torch.randn(50, 7, generator=stream, dtype=torch.float64)
    half = (half / half.norm(dim=1, keepdim=True)).float()
    samples, labels = torch.cat((half, -half)), torch.zeros(100, dtype=torch.int64)
    cut = Cut(samples, labels, [10, 10, 63])
    found = nearest_of(cut, 0.5)
    assert cut.tied > 20
    expected = nearest_to_centroid(samples, labels, CLASSES, 0.5, backend="reference")
    assert torch.equal(found.indices, expected.indices)


def test_equal_distances_keep_the_earlier_across_parts() -> None:
    samples = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    cut = Cut(samples, torch.zeros(4, dtype=torch.int64), [1, 3])
    assert nearest_of(cut, 0.75).indices.tolist() == [0, 1, 2]


def test_a_known_step_saves_two_passes_and_changes_nothing() -> None:
    class Known(Cut):
        def largest(self) -> float:
            raise AssertionError("the step says how large values are")

        def sums(self, unit: float, *, whole: bool) -> Sums:
            assert whole
            return super().sums(unit, whole=whole)

    samples, labels = draw(0, 80)
    for scale in (1.0, 0.1):
        pixels = rounded(samples * scale, 2.0**-18)
        expected = nearest_to_centroid(pixels, labels, CLASSES, 0.5)
        assert same(nearest_of(Known(pixels, labels, [30]), 0.5, 2.0**-18), expected)


def test_sums_are_exact_in_any_order() -> None:
    """Values of which plain float32 sums depend on the order."""
    stream = torch.Generator().manual_seed(3)
    powers = torch.randint(-4, 1, (5000, 1), generator=stream)
    samples = torch.rand(5000, 2, generator=stream) * 10.0**powers
    labels = torch.zeros(5000, dtype=torch.int64)
    shuffled = samples[torch.randperm(5000, generator=stream)]
    assert not torch.equal(sum(samples), sum(shuffled))
    one, other = (
        Local(x, labels, 1, device=CPU).sums(2.0**-18, whole=False) for x in (samples, shuffled)
    )
    assert torch.equal(one.units, other.units)


def test_a_part_without_samples_adds_nothing() -> None:
    none = Local(torch.empty(0, 4), torch.empty(0, dtype=torch.int64), 2, device=CPU)
    sums = none.sums(1.0, whole=False)
    assert not sums.units.any()
    assert not sums.counts.any()
    assert none.largest() == 0
    assert len(none.distances(torch.zeros(2, 4))) == 0
    assert len(none.ordered_distances(torch.empty(0, dtype=torch.int64), torch.zeros(2, 4))) == 0


def test_samples_on_the_host_visit_a_gpu_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, labels = draw(1, 50)
    expected = nearest_to_centroid(samples, labels, CLASSES, 0.5)
    monkeypatch.setattr(parts, "VISIT", 7 * samples.shape[1])
    with pretended_gpus():
        visiting = Local(samples, labels, CLASSES, device=torch.device("cuda:0"))
        found = nearest_of(visiting, 0.5)
        assert found.distances.is_cuda
        on_host = Filtered(found.indices.cpu(), found.distances.cpu(), found.centroids.cpu())
    assert same(on_host, expected)
