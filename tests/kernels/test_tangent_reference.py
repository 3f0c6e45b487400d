"""The reference of the tangent kernel, against the means over normal variables that define it."""

import math

import pytest
import torch

from kernels.tangent_reference import tangent_kernel

POINTS = 20_000


def by_means(u: list[float], v: list[float], depth: int, variance: float, bias: float) -> float:
    """Θ of two rows by k ← σ_w² E[relu(f) relu(g)] + σ_b², Θ ← k + σ_w² Θ E[relu'(f) relu'(g)].

    f and g are normal, with the covariance of before. In polar coordinates, the radius integrated
    out, both means are integrals over a circle, which are sums here.
    """
    circle = (torch.arange(POINTS, dtype=torch.float64) + 0.5) * (2 * math.pi / POINTS)
    pairs = ((u, v), (u, u), (v, v))
    k, left, right = (
        variance * sum(a * b for a, b in zip(*pair, strict=True)) / len(u) + bias**2
        for pair in pairs
    )
    kernel = k
    for _ in range(depth):
        norm = math.sqrt(left * right)
        f, g = circle.cos().relu(), (circle - math.acos(k / norm)).cos().relu()
        k = variance * norm * 2 * float((f * g).mean()) + bias**2
        kernel = k + variance * kernel * float(((f > 0) & (g > 0)).double().mean())
        left, right = (variance * q / 2 + bias**2 for q in (left, right))
    return kernel


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize(("variance", "bias"), [(2.0, 0.1), (1.3, 0.0), (0.7, 1.5)])
def test_it_is_the_recursion_of_means(depth: int, variance: float, bias: float) -> None:
    x, y = torch.tensor([[1.0, 2.0, -1.0]]), torch.tensor([[0.5, -1.0, 3.0], [1.0, 1.0, 0.0]])
    found = tangent_kernel(x, y, depth=depth, weight_variance=variance, bias=bias)
    for j in range(2):
        expected = by_means(x[0].tolist(), y[j].tolist(), depth, variance, bias)
        assert found[0, j].item() == pytest.approx(expected, rel=1e-4, abs=1e-3)


def test_equal_rows_grow_with_depth_and_rows_of_zeros_have_the_bias_alone() -> None:
    """With σ_w² = 2 and no bias a layer keeps k of a row with itself, and adds it to Θ."""
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert tangent_kernel(x, x, depth=4, bias=0.0).tolist() == [[125.0, 0.0], [0.0, 0.0]]
    assert tangent_kernel(x, x, depth=1, bias=0.5)[1, 1].item() == pytest.approx(0.75)


def test_images_are_flattened_and_there_may_be_no_rows() -> None:
    x = torch.rand(2, 1, 2, 2)
    assert torch.equal(tangent_kernel(x, x), tangent_kernel(x.flatten(1), x.flatten(1)))
    assert tangent_kernel(x[:0], x).shape == (0, 2)
