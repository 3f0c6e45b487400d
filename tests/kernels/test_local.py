"""A filter's samples: their exact sums, and those that visit a GPU; tests of ranks spread them."""

import pytest
import torch
from torch import Tensor

from kernels import Filtered, nearest_to_centroid
from kernels import filter as filter_module
from kernels.exact import rounded
from kernels.filter import Local, nearest_of
from kernels.groups import Sums
from tests.kernels.cases import CLASSES
from tests.pretended_gpu import pretended_gpus

CPU = torch.device("cpu")


def draw(seed: int, count: int, features: int = 60) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    samples = torch.rand(count, features, generator=stream)
    return samples, torch.randint(CLASSES - 1, (count,), generator=stream)


def same(one: Filtered, other: Filtered) -> bool:
    return all(
        torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
    )


def test_a_known_step_saves_two_passes_and_changes_nothing() -> None:
    class Known(Local):
        def largest(self) -> float:
            raise AssertionError("the step says how large values are")

        def sums(self, unit: float, *, whole: bool) -> Sums:
            assert whole
            return super().sums(unit, whole=whole)

    samples, labels = draw(0, 80)
    for scale in (1.0, 0.1):
        pixels = rounded(samples * scale, 2.0**-18)
        expected = nearest_to_centroid(pixels, labels, CLASSES, 0.5)
        assert same(nearest_of(Known(pixels, labels, CLASSES, device=CPU), 0.5, 2.0**-18), expected)


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
    monkeypatch.setattr(filter_module, "VISIT", 7 * samples.shape[1])
    with pretended_gpus():
        visiting = Local(samples, labels, CLASSES, device=torch.device("cuda:0"))
        found = nearest_of(visiting, 0.5)
        assert found.distances.is_cuda
        on_host = Filtered(found.indices.cpu(), found.distances.cpu(), found.centroids.cpu())
    assert same(on_host, expected)
