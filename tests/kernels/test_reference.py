"""The float64 reference, held against fractions; and every fast backend held against it."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kernels import Filtered
from tests.kernels.cases import (
    CLASSES,
    SEEDS,
    SHARES,
    SIZES,
    draw,
    examples,
    fast_backends,
    gap,
    kept,
    run,
)

pytestmark = pytest.mark.gpu

GAP = 1e-4  # below it rounding may decide, and the example says nothing


def compare(
    samples: np.ndarray, labels: np.ndarray, keep: float, backend: str
) -> tuple[Filtered, Filtered]:
    """What backend and reference find: the same samples and centroids, and near distances."""
    expected = run(samples, labels, keep, "reference")
    found = run(samples, labels, keep, backend)
    tolerance = {"rtol": 1e-5, "atol": 2.0**-48}
    torch.testing.assert_close(found.distances, expected.distances, **tolerance)
    assert torch.equal(found.centroids, expected.centroids)
    assert torch.equal(found.indices, expected.indices)
    return found, expected


def agrees(samples: np.ndarray, labels: np.ndarray, keep: float, backend: str) -> list[int]:
    """What the backend keeps, after holding everything it returns against the reference."""
    found, _ = compare(samples, labels, keep, backend)
    return found.indices.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_the_reference_is_right_to_the_last_digit_of_a_float(seed: int) -> None:
    """Against fractions, of which nothing is rounded but the result."""
    stream = np.random.default_rng(seed)
    labels = stream.integers(0, CLASSES, 23)
    samples = stream.integers(-9, 10, (23, 3))
    keep = Fraction(7, 10)
    indices: list[int] = []
    found = run(samples.astype(np.float32), labels, float(keep), "reference")
    for c in set(labels.tolist()):
        own = np.flatnonzero(labels == c).tolist()
        mean = [Fraction(int(samples[own, f].sum()), len(own)) for f in range(3)]
        squares = {
            i: sum((int(x) - m) ** 2 for x, m in zip(samples[i], mean, strict=True)) for i in own
        }
        for i, square in squares.items():
            assert found.distances[i].item() == pytest.approx(math.sqrt(square), rel=2**-23)
        for own_mean, m in zip(found.centroids[c].tolist(), mean, strict=True):
            assert own_mean == pytest.approx(float(m), rel=2**-23)
        stay = max(1, math.floor(keep * len(own)))
        indices += sorted(own, key=lambda i: (squares[i], i))[:stay]
    assert found.indices.tolist() == sorted(indices)


@fast_backends
@examples
@given(sizes=SIZES, features=st.integers(1, 300), keep=SHARES, seed=SEEDS)
def test_backends_agree(
    backend: str, sizes: list[int], features: int, keep: float, seed: int
) -> None:
    agrees(*draw(sizes, features, seed), keep, backend)


@fast_backends
@examples
@given(sizes=SIZES, keep=SHARES, seed=SEEDS)
def test_the_order_of_the_samples_does_not_matter(
    backend: str, sizes: list[int], keep: float, seed: int
) -> None:
    samples, labels = draw(sizes, 5, seed)
    order = np.random.default_rng(seed + 1).permutation(len(labels))
    permuted = agrees(samples[order], labels[order], keep, backend)
    assert sorted(order[permuted].tolist()) == agrees(samples, labels, keep, backend)


@fast_backends
@examples
@given(
    sizes=SIZES,
    keep=SHARES,
    seed=SEEDS,
    factor=st.sampled_from([-1.0, 1e-3, 3.0, 1e3]),
    shift=st.sampled_from([0.0, -1.0, 10.0, 1000.0]),
)
def test_scaling_and_moving_all_samples_does_not_matter(
    backend: str, sizes: list[int], keep: float, seed: int, factor: float, shift: float
) -> None:
    samples, labels = draw(sizes, 5, seed)
    # Far away the samples themselves are rounded: where that moves distances, only then.
    assume(gap(run(samples, labels, keep, "reference").distances, labels, keep) > 100 * GAP)
    moved = ((samples + np.float32(shift)) * np.float32(factor)).astype(np.float32)
    assert agrees(moved, labels, keep, backend) == kept(samples, labels, keep, backend)


@fast_backends
@examples
@given(sizes=SIZES, keep=SHARES, seed=SEEDS, exponent=st.integers(-140, 55))
def test_magnitude_does_not_matter(
    backend: str, sizes: list[int], keep: float, seed: int, exponent: int
) -> None:
    """From the smallest floats, of which squares vanish, to where squares overflow."""
    samples, labels = draw(sizes, 5, seed)
    agrees(np.ldexp(samples, exponent).astype(np.float32), labels, keep, backend)


@fast_backends
@examples
@given(sizes=SIZES, keep=SHARES, seed=SEEDS)
def test_classes_do_not_influence_each_other(
    backend: str, sizes: list[int], keep: float, seed: int
) -> None:
    samples, labels = draw(sizes, 5, seed)
    together = agrees(samples, labels, keep, backend)
    # The largest value, of any class, decides how finely values are rounded for the mean.
    assume(gap(run(samples, labels, keep, "reference").distances, labels, keep) > GAP)
    for c in set(labels.tolist()):
        own = np.flatnonzero(labels == c)
        alone = kept(samples[own], labels[own], keep, backend)
        assert own[alone].tolist() == [i for i in together if labels[i] == c]


@fast_backends
@examples
@given(sizes=SIZES, keep=SHARES, seed=SEEDS, copies=st.integers(2, 5))
def test_of_duplicated_samples_the_first_copies_stay(
    backend: str, sizes: list[int], keep: float, seed: int, copies: int
) -> None:
    """Copies are exactly as far as each other, so number decides, on every backend alike."""
    samples, labels = draw(sizes, 3, seed)
    samples, labels = np.tile(samples, (copies, 1)), np.tile(labels, copies)
    found, _ = compare(samples, labels, keep, backend)
    distances = found.distances.numpy().reshape(copies, -1)
    assert (distances == distances[0]).all()


@fast_backends
@examples
@given(sizes=SIZES, seed=SEEDS)
def test_a_run_repeats_to_the_last_bit(backend: str, sizes: list[int], seed: int) -> None:
    samples, labels = draw(sizes, 33, seed)
    first, second = (run(samples, labels, 0.8, backend) for _ in range(2))
    for name in ("indices", "distances", "centroids"):
        assert torch.equal(getattr(first, name), getattr(second, name))
