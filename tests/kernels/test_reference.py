"""The float64 reference, held against fractions; and every fast backend held against it."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.cases import CLASSES, SEEDS, SHARES, SIZES, draw, examples, fast_backends, run

pytestmark = pytest.mark.gpu


def assert_agrees(samples: np.ndarray, labels: np.ndarray, keep: float, backend: str) -> None:
    """Backend and reference find the same samples and centroids, and near distances."""
    expected = run(samples, labels, keep, "reference")
    found = run(samples, labels, keep, backend)
    torch.testing.assert_close(found.distances, expected.distances, rtol=1e-5, atol=2.0**-48)
    assert torch.equal(found.centroids, expected.centroids)
    assert torch.equal(found.indices, expected.indices)


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
@given(
    sizes=SIZES,
    features=st.integers(1, 300),
    keep=SHARES,
    seed=SEEDS,
    exponent=st.integers(-140, 55),
)
def test_backends_agree(
    backend: str, sizes: list[int], features: int, keep: float, seed: int, exponent: int
) -> None:
    """From the smallest floats, of which squares vanish, to where squares overflow."""
    samples, labels = draw(sizes, features, seed)
    assert_agrees(np.ldexp(samples, exponent).astype(np.float32), labels, keep, backend)
