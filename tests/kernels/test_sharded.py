"""The filter in parts: the same bits however the samples are spread, and those of the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import nearest_to_centroid, sharded


def in_parts(
    samples: Tensor, labels: Tensor, num_classes: int, keep: float, cuts: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Indices, distances and centroids, with the samples cut at these positions."""
    parts = list(zip(samples.tensor_split(cuts), labels.tensor_split(cuts), strict=True))
    unit = sharded.unit_for(max(sharded.magnitude(x) for x, _ in parts), len(samples))
    sums = sum(sharded.class_sums(x, y, num_classes, unit) for x, y in parts)
    centres = sharded.centroids(sums, unit)
    distances = torch.cat([sharded.distances(x, y, centres) for x, y in parts])
    return sharded.nearest(distances, labels, num_classes, keep), distances, centres


def draw(seed: int, count: int, num_classes: int) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    samples = torch.rand(count, 3, 4, 5, generator=stream)
    return samples, torch.randint(num_classes, (count,), generator=stream)


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
    samples, labels = draw(seed, count, 3)
    samples *= scale
    whole = in_parts(samples, labels, 3, keep, [])
    for part, one in zip(in_parts(samples, labels, 3, keep, cuts), whole, strict=True):
        assert torch.equal(part, one)


@pytest.mark.parametrize("keep", [0.29, 0.8, 1.0])
def test_the_result_is_the_references(keep: float) -> None:
    samples, labels = draw(0, 400, 6)
    found, distances, centres = in_parts(samples, labels, 7, keep, [100, 101, 300])
    expected = nearest_to_centroid(samples, labels, 7, keep, backend="reference")
    assert torch.equal(found, expected.indices)
    torch.testing.assert_close(distances, expected.distances)
    torch.testing.assert_close(centres, expected.centroids)
    assert not centres[6].any()


def test_sums_are_exact_in_any_order() -> None:
    """Values of which plain float32 sums depend on the order."""
    stream = torch.Generator().manual_seed(3)
    samples = torch.rand(5000, 2, generator=stream) * 10.0 ** torch.randint(
        -4, 1, (5000, 1), generator=stream
    )
    labels = torch.zeros(5000, dtype=torch.int64)
    shuffled = samples[torch.randperm(5000, generator=stream)]
    assert not torch.equal(sum(samples), sum(shuffled))
    unit = sharded.unit_for(1.0, 5000)
    one, other = (sharded.class_sums(x, labels, 1, unit) for x in (samples, shuffled))
    assert torch.equal(one, other)


def test_equal_distances_keep_the_earlier_across_parts() -> None:
    samples = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    labels = torch.zeros(4, dtype=torch.int64)
    assert in_parts(samples, labels, 1, 0.75, [1, 3])[0].tolist() == [0, 1, 2]


def test_a_unit_leaves_room_for_all() -> None:
    for largest, count in ((1.0, 1), (0.999, 1000), (3e30, 7), (1e-30, 10**6)):
        unit = sharded.unit_for(largest, count)
        assert largest / unit * count <= 2**53
        assert largest / unit * count > 2**49


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_none_are_refused(value: float) -> None:
    samples = torch.ones(3, 2)
    samples[1, 1] = value
    with pytest.raises(ValueError, match="sample 1"):
        sharded.magnitude(samples)


def test_labels_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="labels"):
        sharded.class_sums(torch.ones(2, 2), torch.tensor([0, 3]), 3, 1.0)


def test_a_place_without_samples_adds_nothing() -> None:
    none, no_labels = torch.empty(0, 4), torch.empty(0, dtype=torch.int64)
    assert sharded.magnitude(none) == 0
    assert not sharded.class_sums(none, no_labels, 2, 1.0).any()
    assert len(sharded.distances(none, no_labels, torch.zeros(2, 4))) == 0
    assert len(sharded.nearest(torch.empty(0), no_labels, 2, 0.5)) == 0
