"""The tangent kernel against its reference, and its gradients against differences."""

import math

import pytest
import torch
from torch import Tensor

from kernels import tangent_kernel
from kernels.tangent_reference import tangent_kernel as reference
from tests.kernels.cases import DEVICE

pytestmark = pytest.mark.gpu

depths = pytest.mark.parametrize("depth", [1, 2, 4])


def draw(*shape: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=torch.float64).to(DEVICE)


def with_common_rows() -> tuple[Tensor, Tensor]:
    """Of six rows and five, two are the same."""
    x = draw(6, 7)
    return x, torch.cat((draw(3, 7, seed=1), x[2:4]))


@depths
@pytest.mark.parametrize(("variance", "bias"), [(2.0, 0.1), (1.3, 0.0), (0.7, 1.5)])
def test_it_is_the_reference(depth: int, variance: float, bias: float) -> None:
    x, y = draw(6, 7), draw(5, 7, seed=1)
    options = {"weight_variance": variance, "bias": bias}
    found = tangent_kernel(x, y, depth=depth, **options)
    expected = reference(x, y, depth=depth, **options).to(DEVICE)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_the_defaults_are_the_reference_s() -> None:
    x, y = draw(3, 7), draw(2, 7, seed=1)
    torch.testing.assert_close(tangent_kernel(x, y), reference(x, y).to(DEVICE))


@depths
def test_of_equal_rows_it_has_all_digits(depth: int) -> None:
    x, y = with_common_rows()
    expected = reference(x, y, depth=depth).to(DEVICE)
    torch.testing.assert_close(tangent_kernel(x, y, depth=depth), expected, rtol=1e-12, atol=1e-13)
    wide = draw(5, 3072)
    found = tangent_kernel(wide, wide.clone(), depth=depth).diagonal()
    expected = reference(wide, wide, depth=depth).diagonal().to(DEVICE)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_one_layer_is_the_closed_form() -> None:
    x, y = draw(6, 7), draw(5, 7, seed=1)
    k = 2 * x @ y.T / 7 + 0.01
    norm = torch.outer(2 * x.square().mean(1) + 0.01, 2 * y.square().mean(1) + 0.01).sqrt()
    angle = torch.arccos(k / norm)
    arc = norm * (angle.sin() + (math.pi - angle) * angle.cos()) / math.pi + 0.01
    expected = arc + k * (math.pi - angle) / math.pi
    torch.testing.assert_close(tangent_kernel(x, y, depth=1), expected, rtol=1e-12, atol=1e-13)


@depths
def test_rows_with_themselves_are_symmetric_and_positive_semidefinite(depth: int) -> None:
    x = draw(20, 5).repeat(2, 1)
    found = tangent_kernel(x, x, depth=depth)
    torch.testing.assert_close(found, found.T, rtol=1e-12, atol=1e-13)
    values = torch.linalg.eigvalsh(found)
    assert values[0] > -1e-12 * values[-1]


def test_images_and_batches_are_those_of_their_rows_one_by_one() -> None:
    x, y = draw(3, 4, 1, 2, 3).float(), draw(3, 5, 1, 2, 3, seed=1).half()
    found = tangent_kernel(x, y)
    assert (found.dtype, found.shape) == (torch.float64, (3, 4, 5))
    torch.testing.assert_close(found, tangent_kernel(x.flatten(2), y.flatten(2)), rtol=0, atol=0)
    for b in range(3):
        close = {"rtol": 1e-12, "atol": 1e-13}
        torch.testing.assert_close(tangent_kernel(x[b], y[b]), found[b], **close)
        torch.testing.assert_close(
            tangent_kernel(x[b].flatten(1), y[b].flatten(1)), found[b], **close
        )


def test_there_may_be_no_rows() -> None:
    x = draw(4, 3).requires_grad_()
    assert tangent_kernel(x[:0], x).shape == (0, 4)
    tangent_kernel(x, x[:0]).sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


@pytest.mark.parametrize(("depth", "bias"), [(1, 0.1), (4, 0.1), (4, 0.0)])
def test_gradients_are_those_of_differences(depth: int, bias: float) -> None:
    x, y = draw(2, 4, 3).requires_grad_(), draw(2, 3, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, b: tangent_kernel(a, b, depth=depth, bias=bias), (x, y)
    )


@pytest.mark.parametrize("apart", [1e-2, 1e-4])
def test_gradients_of_rows_side_by_side(apart: float) -> None:
    """Near the cusp, in the direction in which Θ is steep."""
    x, away = draw(1, 5), draw(1, 5, seed=1)
    y = (x + apart * away).requires_grad_()
    (found,) = torch.autograd.grad(tangent_kernel(x, y), y)
    step = apart * 1e-2 * away
    with torch.no_grad():
        ahead, behind = (tangent_kernel(x, y + s) for s in (step, -step))
    slope = (found * step).sum().item()
    assert slope == pytest.approx(float(ahead - behind) / 2, abs=1e-3 * step.norm().item())


def test_of_equal_rows_the_gradient_is_the_mean_of_the_slopes_of_both_sides() -> None:
    x, y = with_common_rows()
    y.requires_grad_()
    (found,) = torch.autograd.grad(tangent_kernel(x, y)[2, 3], y)
    away = torch.zeros_like(y)
    away[3] = draw(7, seed=2)
    with torch.no_grad():
        here, ahead, behind = (tangent_kernel(x, y + s * away)[2, 3] for s in (0, 1e-4, -1e-4))
    slopes = (ahead - here).item() * 1e4, (here - behind).item() * 1e4
    assert slopes[1] - slopes[0] > 1  # a cusp
    assert (found * away).sum().item() == pytest.approx(sum(slopes) / 2, rel=1e-4)


def test_rows_of_zeros_without_bias_have_finite_gradients() -> None:
    x = torch.cat((torch.zeros(1, 4, dtype=torch.float64), draw(2, 4).cpu())).requires_grad_()
    found = tangent_kernel(x, x, bias=0.0)
    assert found[0].max() < 1e-150
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert gradient.isfinite().all()


def test_it_is_differentiable_once_and_says_so() -> None:
    x = draw(3, 4).requires_grad_()
    y = draw(2, 4, seed=1)
    with pytest.raises(RuntimeError, match="differentiable once, not with create_graph"):
        torch.autograd.grad(tangent_kernel(x, y).sum(), x, create_graph=True)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(3), torch.zeros(3), "must both be rows or both images"),
        (torch.zeros(2, 3), torch.zeros(1, 2, 3), "must both be rows or both images"),
        (torch.zeros(2, 3), torch.zeros(2, 4), "shapes do not fit"),
        (torch.zeros(1, 2, 3), torch.zeros(2, 2, 3), "shapes do not fit"),
        (torch.zeros(2, 1, 3, 3), torch.zeros(2, 1, 3, 4), "shapes do not fit"),
        (torch.zeros(2, 0), torch.zeros(2, 0), "no features"),
        (torch.zeros(2, 3), torch.zeros(2, 3).long(), "must be floating point"),
        (torch.zeros(2, 3), torch.zeros(2, 3, device="meta"), "y on meta"),
    ],
)
def test_what_does_not_fit_is_refused(x: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tangent_kernel(x, y)
    with pytest.raises(ValueError, match="need a hidden layer"):
        tangent_kernel(draw(2, 3), draw(2, 3), depth=0)
