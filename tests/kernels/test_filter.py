from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import Filtered, nearest_to_centroid

CLASSES = 4
SHARES = st.integers(1, 100).map(lambda percent: percent / 100)
SEEDS = st.integers(0, 2**32)
SIZES = st.lists(st.integers(0, 25), min_size=CLASSES, max_size=CLASSES)
examples = settings(max_examples=60, deadline=None, derandomize=True)


def quota(count: int, keep: float) -> int:
    """How many of a class stay: exact, and at least one."""
    return min(count, max(1, int(Fraction(str(keep)) * count)))


def reference(
    samples: np.ndarray, labels: np.ndarray, keep: float
) -> tuple[list[int], np.ndarray, np.ndarray, float]:
    """Algorithm 2 in float64, class by class.

    Returns the kept indices, all distances, the centroids, and the smallest relative gap between
    a kept and a dropped distance of one class.
    """
    kept: list[int] = []
    gap = np.inf
    distances = np.zeros(len(samples))
    centroids = np.zeros((CLASSES, samples.shape[1]))
    for c in range(CLASSES):
        own = [i for i in range(len(samples)) if labels[i] == c]
        if not own:
            continue
        centroids[c] = sum(samples[i] for i in own) / len(own)
        for i in own:
            distances[i] = np.sqrt(((samples[i] - centroids[c]) ** 2).sum())
        own.sort(key=lambda i: (distances[i], i))
        stay = quota(len(own), keep)
        kept += own[:stay]
        if stay < len(own):
            nearest_dropped, farthest_kept = distances[own[stay]], distances[own[stay - 1]]
            gap = min(gap, (nearest_dropped - farthest_kept) / distances[own[-1]])
    return sorted(kept), distances, centroids, gap


def draw(sizes: list[int], features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples of each class around a centre of its own, in random order."""
    stream = np.random.default_rng(seed)
    labels = stream.permutation(np.repeat(np.arange(CLASSES), sizes))
    centres = stream.normal(size=(CLASSES, features))
    samples = centres[labels] + stream.normal(size=(len(labels), features))
    return samples.astype(np.float32), labels


def kept(samples: np.ndarray, labels: np.ndarray, keep: float) -> list[int]:
    return run(torch.tensor(samples), labels, keep).indices.tolist()


def run(samples: Tensor, labels: np.ndarray | list[int], keep: float) -> Filtered:
    return nearest_to_centroid(samples, torch.tensor(labels, dtype=torch.int64), CLASSES, keep)


@examples
@given(sizes=SIZES, features=st.integers(1, 40), keep=SHARES, seed=SEEDS)
def test_it_is_algorithm_2(sizes: list[int], features: int, keep: float, seed: int) -> None:
    samples, labels = draw(sizes, features, seed)
    indices, distances, centroids, gap = reference(samples.astype(np.float64), labels, keep)
    found = run(torch.tensor(samples), labels, keep)
    np.testing.assert_allclose(found.distances.numpy(), distances, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.centroids.numpy(), centroids, rtol=1e-4, atol=1e-5)
    assert (found.indices.dtype, found.distances.dtype) == (torch.int64, torch.float32)
    assume(gap > 1e-5)
    assert found.indices.tolist() == indices


@pytest.mark.parametrize("count", [255, 256, 257, 700])
def test_it_is_algorithm_2_for_as_many_samples_as_there_may_be(count: int) -> None:
    """Whatever the size of the blocks in which they are taken."""
    samples, labels = draw([count - 1, 0, 1, 0], 7, seed=count)
    indices, distances, _, gap = reference(samples.astype(np.float64), labels, 0.8)
    found = run(torch.tensor(samples), labels, 0.8)
    np.testing.assert_allclose(found.distances.numpy(), distances, rtol=1e-4, atol=1e-5)
    assert gap > 1e-6, "draw other samples"
    assert found.indices.tolist() == indices


def test_planted_outliers_go() -> None:
    """Twelve of sixty in each of ten classes: the released code's shuffled order keeps most."""
    stream = np.random.default_rng(0)
    labels = stream.permutation(np.repeat(np.arange(10), 60))
    samples = stream.random((600, 1, 28, 28), dtype=np.float32)
    outliers = np.concatenate([np.flatnonzero(labels == c)[5:17] for c in range(10)])
    samples[outliers] += 3
    found = nearest_to_centroid(torch.tensor(samples), torch.tensor(labels), 10, keep=0.8)
    assert len(found.indices) == 480
    assert not set(found.indices.tolist()) & set(outliers.tolist())


@examples
@given(sizes=SIZES, keep=SHARES, seed=SEEDS)
def test_the_order_of_the_samples_does_not_matter(sizes: list[int], keep: float, seed: int) -> None:
    samples, labels = draw(sizes, 5, seed)
    assume(reference(samples.astype(np.float64), labels, keep)[-1] > 1e-5)
    order = np.random.default_rng(seed + 1).permutation(len(labels))
    permuted = kept(samples[order], labels[order], keep)
    assert sorted(order[permuted].tolist()) == kept(samples, labels, keep)


@examples
@given(
    sizes=SIZES,
    keep=SHARES,
    seed=SEEDS,
    factor=st.sampled_from([-1.0, 1e-3, 3.0, 1e3]),
    shift=st.sampled_from([0.0, -1.0, 10.0]),
)
def test_scaling_and_moving_all_samples_does_not_matter(
    sizes: list[int], keep: float, seed: int, factor: float, shift: float
) -> None:
    samples, labels = draw(sizes, 5, seed)
    assume(reference(samples.astype(np.float64), labels, keep)[-1] > 1e-4)
    assert kept((samples + shift) * factor, labels, keep) == kept(samples, labels, keep)


@examples
@given(sizes=SIZES, keep=SHARES, seed=SEEDS)
def test_classes_do_not_influence_each_other(sizes: list[int], keep: float, seed: int) -> None:
    samples, labels = draw(sizes, 5, seed)
    together = kept(samples, labels, keep)
    for c in range(CLASSES):
        own = np.flatnonzero(labels == c)
        alone = kept(samples[own], labels[own], keep)
        assert own[alone].tolist() == [i for i in together if labels[i] == c]


@examples
@given(labels=st.lists(st.integers(0, CLASSES - 1), max_size=40), keep=SHARES)
def test_of_equal_samples_the_first_stay(labels: list[int], keep: float) -> None:
    expected = []
    for c in range(CLASSES):
        own = [i for i, label in enumerate(labels) if label == c]
        expected += own[: quota(len(own), keep)]
    assert run(torch.ones(len(labels), 3), labels, keep).indices.tolist() == sorted(expected)


def test_of_equally_distant_samples_the_first_stay() -> None:
    samples = torch.tensor([[4.0], [-4.0], [1.0], [-1.0], [4.0], [-4.0]])
    assert run(samples, [0] * 6, 0.67).indices.tolist() == [0, 1, 2, 3]
    assert run(samples.flip(0), [0] * 6, 0.67).indices.tolist() == [0, 1, 2, 3]


def test_exactly_the_floor_of_the_share_stays() -> None:
    """0.29 * 100 is 28.999... in floating point. Classes of 1 to 200 samples, all at once."""
    labels = torch.repeat_interleave(torch.arange(200), torch.arange(1, 201))
    samples = torch.rand(len(labels), 1, generator=torch.Generator().manual_seed(0))
    for percent in range(1, 101):
        found = nearest_to_centroid(samples, labels, 200, percent / 100).indices
        counts = torch.bincount(labels[found], minlength=200)
        assert counts.tolist() == [max(1, percent * n // 100) for n in range(1, 201)]


def test_a_share_of_one_keeps_all() -> None:
    samples, labels = draw([5, 0, 1, 30], 6, seed=0)
    assert kept(samples, labels, 1.0) == list(range(36))


@pytest.mark.parametrize("keep", [1e-12, 0.01, 0.49])
def test_a_class_with_samples_keeps_its_nearest_at_least(keep: float) -> None:
    samples = torch.tensor([[0.0], [10.0], [4.0], [7.0]])
    assert run(samples, [2, 2, 2, 0], keep).indices.tolist() == [2, 3]


def test_an_empty_class_has_no_samples_and_a_centroid_of_zero() -> None:
    found = run(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), [3, 3], 1.0)
    assert found.indices.tolist() == [0, 1]
    assert found.centroids.tolist() == [[0, 0], [0, 0], [0, 0], [2, 3]]


@pytest.mark.parametrize("shape", [(0, 5), (0, 1, 28, 28), (0,)])
def test_nothing_in_gives_nothing_out(shape: tuple[int, ...]) -> None:
    found = run(torch.zeros(shape), [], 0.8)
    assert found.indices.shape == found.distances.shape == (0,)
    assert found.indices.dtype == torch.int64
    assert not found.centroids.any()


def test_every_dimension_after_the_first_is_feature() -> None:
    samples, labels = draw([9, 4, 0, 2], 12, seed=3)
    flat = run(torch.tensor(samples), labels, 0.5)
    shaped = run(torch.tensor(samples).view(-1, 3, 2, 2), labels, 0.5)
    assert torch.equal(shaped.indices, flat.indices)
    assert torch.equal(shaped.distances, flat.distances)
    assert shaped.centroids.shape == (CLASSES, 12)
    assert kept(samples[:, 0], labels, 0.5) == kept(samples[:, :1], labels, 0.5)


def test_a_view_is_as_good_as_a_copy_and_nothing_is_written_to_it() -> None:
    samples, labels = draw([9, 4, 0, 2], 6, seed=4)
    view = torch.tensor(np.repeat(samples, 2, axis=1))[:, ::2]
    before = view.clone()
    assert run(view, labels, 0.5).indices.tolist() == kept(samples, labels, 0.5)
    assert torch.equal(view, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_points_are_computed_in_float32(dtype: torch.dtype) -> None:
    samples, labels = draw([30, 20, 0, 7], 50, seed=5)
    given_samples = torch.tensor(samples).to(dtype)
    found = run(given_samples, labels, 0.6)
    expected = run(given_samples.float(), labels, 0.6)
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.distances, expected.distances)
    assert found.distances.dtype == found.centroids.dtype == torch.float32


def test_half_precision_sums_do_not_overflow() -> None:
    samples = torch.full((500, 2), 6e4, dtype=torch.float16)
    samples[7] = 0
    found = run(samples, [1] * 500, 0.998)
    assert 7 not in found.indices.tolist()
    assert torch.isfinite(found.centroids).all()


@pytest.mark.parametrize("magnitude", [1e-15, 1e-6, 1e6, 1e15])
def test_tiny_and_huge_samples_are_told_apart(magnitude: float) -> None:
    samples, labels = draw([20, 20, 3, 0], 30, seed=6)
    assert kept(samples * np.float32(magnitude), labels, 0.7) == kept(samples, labels, 0.7)


@pytest.mark.parametrize("magnitude", [1e20, 1e38])
def test_samples_whose_distances_overflow_are_refused(magnitude: float) -> None:
    samples = torch.tensor([[1.0], [2.0], [-3.0]]) * magnitude
    with pytest.raises(ValueError, match="overflow"):
        run(samples, [0, 0, 0], 0.5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_the_first_sample_that_is_no_number_is_named(bad: float) -> None:
    samples = torch.zeros(9, 1, 2, 2)
    samples[4, 0, 1, 0] = bad
    samples[6] = bad
    with pytest.raises(ValueError, match=r"^sample 4 has NaN or infinite values$"):
        run(samples, [0] * 9, 0.8)


@pytest.mark.parametrize("label", [-1, CLASSES, 2**40])
def test_a_label_out_of_range_is_refused(label: int) -> None:
    with pytest.raises(ValueError, match=rf"^labels must be in \[0, {CLASSES}\)$"):
        run(torch.zeros(3, 2), [0, label, 1], 0.8)


@pytest.mark.parametrize("labels", [[0], [0, 0, 0], []])
def test_samples_and_labels_must_be_as_many(labels: list[int]) -> None:
    with pytest.raises(ValueError, match=rf"^labels must be \(2,\), got \({len(labels)},"):
        run(torch.zeros(2, 3), labels or np.zeros(0, np.int64), 0.8)


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.01, float("nan"), float("inf")])
def test_a_share_that_is_no_share_is_refused(keep: float) -> None:
    with pytest.raises(ValueError, match=r"^keep must be in \(0, 1\], got"):
        run(torch.zeros(2, 3), [0, 0], keep)
