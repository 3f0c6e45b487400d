"""What `nearest_to_centroid` promises, for every backend."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kernels import groups, nearest_to_centroid
from kernels.groups import interpreted
from tests.kernels.cases import (
    CLASSES,
    DEVICE,
    SEEDS,
    SHARES,
    SIZES,
    algorithm_2,
    draw,
    every_backend,
    examples,
    gap,
    kept,
    quota,
    run,
)

pytestmark = pytest.mark.gpu

ROUNDED = 8 * 2.0**-18 * 6
"""No value of `draw` is above 8, and no distance of few features is further off than this."""


@every_backend
@examples
@given(sizes=SIZES, features=st.integers(1, 40), keep=SHARES, seed=SEEDS)
def test_it_is_algorithm_2(
    backend: str, sizes: list[int], features: int, keep: float, seed: int
) -> None:
    samples, labels = draw(sizes, features, seed)
    indices, distances, centroids = algorithm_2(samples.astype(np.float64), labels, keep)
    found = run(samples, labels, keep, backend)
    np.testing.assert_allclose(found.distances.numpy(), distances, rtol=1e-4, atol=ROUNDED)
    np.testing.assert_allclose(found.centroids.numpy(), centroids, rtol=1e-4, atol=ROUNDED)
    assert (found.indices.dtype, found.distances.dtype) == (torch.int64, torch.float32)
    assume(gap(distances, labels, keep) > 1e-4)
    assert found.indices.tolist() == indices


@every_backend
@pytest.mark.parametrize(
    ("sizes", "features"),
    [
        *(([count - 1, 0, 1, 0], 7) for count in (127, 128, 257, 700)),
        *(([9, 3, 0, 12], features) for features in (1, 256, 257, 1025)),
    ],
)
def test_it_is_algorithm_2_whatever_the_blocks(
    backend: str, sizes: list[int], features: int
) -> None:
    """Whatever the size of the pieces and blocks in which samples and features are taken."""
    samples, labels = draw(sizes, features, seed=sum(sizes) + 1)
    indices, distances, centroids = algorithm_2(samples.astype(np.float64), labels, 0.8)
    found = run(samples, labels, 0.8, backend)
    atol = max(ROUNDED, features * 2.0**-18)
    np.testing.assert_allclose(found.distances.numpy(), distances, rtol=1e-4, atol=atol)
    np.testing.assert_allclose(found.centroids.numpy(), centroids, rtol=1e-4, atol=ROUNDED)
    assert gap(distances, labels, 0.8) > 1e-5, "draw other samples"
    assert found.indices.tolist() == indices


@every_backend
def test_planted_outliers_go(backend: str) -> None:
    """Twelve of sixty in each of ten classes: the released code's shuffled order keeps most."""
    stream = np.random.default_rng(0)
    labels = stream.permutation(np.repeat(np.arange(10), 60))
    samples = stream.random((600, 1, 28, 28), dtype=np.float32)
    outliers = np.concatenate([np.flatnonzero(labels == c)[5:17] for c in range(10)])
    samples[outliers] += 3
    found = run(samples, labels, 0.8, backend, num_classes=10)
    assert len(found.indices) == 480
    assert not set(found.indices.tolist()) & set(outliers.tolist())


@every_backend
@examples
@given(labels=st.lists(st.integers(0, CLASSES - 1), max_size=40), keep=SHARES)
def test_of_equal_samples_the_first_stay(backend: str, labels: list[int], keep: float) -> None:
    expected = []
    for c in range(CLASSES):
        own = [i for i, label in enumerate(labels) if label == c]
        expected += own[: quota(len(own), keep)]
    assert kept(torch.ones(len(labels), 3), labels, keep, backend) == sorted(expected)


@every_backend
def test_of_equally_distant_samples_the_first_stay(backend: str) -> None:
    samples = torch.tensor([[4.0], [-4.0], [1.0], [-1.0], [4.0], [-4.0]])
    assert kept(samples, [0] * 6, 0.67, backend) == [0, 1, 2, 3]
    assert kept(samples.flip(0), [0] * 6, 0.67, backend) == [0, 1, 2, 3]


@every_backend
@pytest.mark.parametrize("keep", [1e-12, 0.01, 0.49])
def test_a_class_with_samples_keeps_its_nearest_at_least(backend: str, keep: float) -> None:
    samples = torch.tensor([[0.0], [10.0], [4.0], [7.0]])
    assert kept(samples, [2, 2, 2, 0], keep, backend) == [2, 3]


@every_backend
def test_an_empty_class_has_no_samples_and_a_centroid_of_zero(backend: str) -> None:
    found = run(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), [3, 3], 1.0, backend)
    assert found.indices.tolist() == [0, 1]
    assert found.centroids.tolist() == [[0, 0], [0, 0], [0, 0], [2, 3]]
    assert run(torch.tensor([[1.0]]), [1], 0.5, backend).centroids.tolist() == [[0], [1], [0], [0]]


@every_backend
@pytest.mark.parametrize("shape", [(0, 5), (0, 1, 28, 28), (0,)])
def test_nothing_in_gives_nothing_out(backend: str, shape: tuple[int, ...]) -> None:
    found = run(torch.zeros(shape), [], 0.8, backend)
    assert found.indices.shape == found.distances.shape == (0,)
    assert found.indices.dtype == torch.int64
    assert found.centroids.shape[0] == CLASSES
    assert not found.centroids.any()


@every_backend
def test_every_dimension_after_the_first_is_feature(backend: str) -> None:
    samples, labels = draw([9, 4, 0, 2], 12, seed=3)
    flat = run(samples, labels, 0.5, backend)
    shaped = run(samples.reshape(-1, 3, 2, 2), labels, 0.5, backend)
    assert torch.equal(shaped.indices, flat.indices)
    assert torch.equal(shaped.distances, flat.distances)
    assert shaped.centroids.shape == (CLASSES, 12)
    assert kept(samples[:, 0], labels, 0.5, backend) == kept(samples[:, :1], labels, 0.5, backend)


@every_backend
def test_a_view_is_as_good_as_a_copy_and_nothing_is_written_to_it(backend: str) -> None:
    samples, labels = draw([9, 4, 0, 2], 6, seed=4)
    view = torch.tensor(np.repeat(samples, 2, axis=1), device=DEVICE)[:, ::2]
    transposed = torch.tensor(np.ascontiguousarray(samples.T), device=DEVICE).T
    before = view.clone()
    expected = kept(samples, labels, 0.5, backend)
    assert kept(view, labels, 0.5, backend) == expected
    assert kept(transposed, labels, 0.5, backend) == expected
    assert torch.equal(view, before)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_points_are_computed_in_float32(backend: str, dtype: torch.dtype) -> None:
    samples, labels = draw([30, 20, 0, 7], 50, seed=5)
    rounded = torch.tensor(samples).to(dtype)
    found = run(rounded, labels, 0.6, backend)
    expected = run(rounded.float(), labels, 0.6, backend)
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.distances, expected.distances)
    assert found.distances.dtype == found.centroids.dtype == torch.float32


@every_backend
def test_half_precision_sums_do_not_overflow(backend: str) -> None:
    samples = torch.full((500, 2), 6e4, dtype=torch.float16)
    samples[7] = 0
    found = run(samples, [1] * 500, 0.998, backend)
    assert 7 not in found.indices.tolist()
    assert torch.isfinite(found.centroids).all()


@every_backend
def test_sums_of_many_samples_keep_their_digits(backend: str) -> None:
    """Added one after another in float32, the mean of these is off by 5e-5 of itself."""
    found = run(torch.full((10_000, 1), 1000.1), [0] * 10_000, 0.5, backend)
    assert found.centroids[0].item() == pytest.approx(1000.1, rel=5e-6)
    assert found.indices.tolist() == list(range(5000))


@every_backend
def test_the_gradient_stops_here(backend: str) -> None:
    samples, labels = draw([9, 4, 0, 2], 6, seed=4)
    found = run(torch.tensor(samples).requires_grad_(), labels, 0.5, backend)
    assert not found.distances.requires_grad
    assert found.indices.tolist() == kept(samples, labels, 0.5, backend)


@every_backend
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_may_be_any_integers(backend: str, dtype: torch.dtype) -> None:
    samples, labels = draw([9, 4, 0, 2], 6, seed=4)
    narrow = torch.tensor(labels, device=DEVICE).to(dtype)
    given_samples = torch.tensor(samples, device=DEVICE)
    found = nearest_to_centroid(given_samples, narrow, CLASSES, 0.5, backend=backend)
    assert found.indices.tolist() == kept(samples, labels, 0.5, backend)


@every_backend
@pytest.mark.parametrize("num_classes", [1, 130, 40_000])
def test_there_may_be_few_or_many_classes(backend: str, num_classes: int) -> None:
    """Beyond what 8 and 16 bits number; all but three are empty."""
    if backend == "triton" and num_classes > 1000 and interpreted():
        pytest.skip("a program per class is too slow in the interpreter")
    samples, labels = draw([5, 7, 6], 3, seed=2)
    spread = np.array([0, num_classes // 2, num_classes - 1])[labels]
    found = run(samples, spread, 0.6, backend, num_classes=num_classes)
    expected = run(samples, spread, 0.6, "reference", num_classes=num_classes)
    assert found.indices.tolist() == expected.indices.tolist()
    torch.testing.assert_close(found.centroids, expected.centroids)


@every_backend
@pytest.mark.parametrize("magnitude", [1e20, 1e25, 1e38])
def test_samples_whose_distances_overflow_are_refused(backend: str, magnitude: float) -> None:
    samples = torch.tensor([[1.0], [2.0], [-3.0]]) * magnitude
    with pytest.raises(ValueError, match="overflow"):
        run(samples, [0, 0, 0], 0.5, backend)


@every_backend
@pytest.mark.parametrize("bad", [torch.nan, -torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_first_sample_that_is_no_number_is_named(
    backend: str, bad: float, dtype: torch.dtype
) -> None:
    samples = torch.zeros(300, 1, 2, 2, dtype=dtype)
    samples[298, 0, 1, 0] = bad
    samples[299] = bad
    with pytest.raises(ValueError, match=r"^sample 298 has NaN or infinite values$"):
        run(samples, [0, 1, 2] * 100, 0.8, backend)


def test_the_bad_sample_is_looked_for_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "BLOCK", 8)
    for row in (0, 3, 4, 11, 12):
        samples = torch.zeros(13, 2)
        samples[row:, 1] = torch.inf
        with pytest.raises(ValueError, match=rf"^sample {row} has NaN"):
            run(samples, [0] * 13, 0.8)


@every_backend
@pytest.mark.parametrize("label", [-1, CLASSES, 2**40, -(2**40)])
def test_a_label_out_of_range_is_refused(backend: str, label: int) -> None:
    with pytest.raises(ValueError, match=rf"^labels must be in \[0, {CLASSES}\)$"):
        run(torch.zeros(3, 2), [0, label, 1], 0.8, backend)
    with pytest.raises(ValueError, match=rf"^labels must be in \[0, {CLASSES}\)$"):
        run(torch.ones(3, 2), [label] * 3, 0.8, backend)


@pytest.mark.parametrize("labels", [[0], [0, 0, 0], []])
def test_samples_and_labels_must_be_as_many(labels: list[int]) -> None:
    with pytest.raises(ValueError, match=rf"^labels must be \(2,\), got \({len(labels)},"):
        run(torch.zeros(2, 3), labels, 0.8)


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.01, float("nan"), float("inf")])
def test_a_share_that_is_no_share_is_refused(keep: float) -> None:
    with pytest.raises(ValueError, match=r"^keep must be in \(0, 1\], got"):
        run(torch.zeros(2, 3), [0, 0], keep)


@pytest.mark.parametrize(
    ("samples", "labels", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(2).long(), "floating point"),
        (torch.zeros(2, 3), torch.zeros(2), "labels must be integers"),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.bool), "labels must be integers"),
        (torch.tensor(1.0), torch.zeros(1).long(), "first dimension"),
        (torch.zeros(2, 0), torch.zeros(2).long(), "no features"),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64, device="meta"), "labels are on meta"),
    ],
)
def test_what_does_not_fit_is_refused(
    samples: torch.Tensor, labels: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        nearest_to_centroid(samples, labels, 1, 0.5)


def test_there_must_be_a_class() -> None:
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        nearest_to_centroid(torch.zeros(0, 3), torch.zeros(0).long(), 0, 0.5)
