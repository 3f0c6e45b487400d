"""The tangent kernel and KIP's regression against plain loops, gradients against differences."""

import math

import pytest
import torch
from torch import Tensor

from kernels import centred, predictions, tangent_kernel
from kernels.kip import FLAWS
from tests.kernels.cases import DEVICE
from tests.kernels.tangent_reference import tangent_kernel as reference

pytestmark = pytest.mark.gpu

CLASSES = 3
depths = pytest.mark.parametrize("depth", [1, 2, 4])


def draw(*shape: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=torch.float64).to(DEVICE)


def labels(count: int) -> Tensor:
    return centred(torch.arange(count, device=DEVICE) % CLASSES, CLASSES)


def with_common_rows() -> tuple[Tensor, Tensor]:
    """Of six rows and five, two are the same."""
    x = draw(6, 7)
    return x, torch.cat((draw(3, 7, seed=1), x[2:4]))


def half_square(support: Tensor, targets: Tensor, ridge: float = 1e-6, depth: int = 4) -> Tensor:
    """KIP's loss."""
    found, _ = predictions(support, labels(len(support)), targets, ridge=ridge, depth=depth)
    return 0.5 * (found - labels(len(targets))).square().mean()


def test_labels_are_one_hot_around_zero() -> None:
    found = centred(torch.tensor([0, 1]), 4)
    assert found.tolist() == [[0.75, -0.25, -0.25, -0.25], [-0.25, 0.75, -0.25, -0.25]]
    assert found.dtype == torch.float64


@depths
def test_the_kernel_is_the_reference_also_of_equal_rows(depth: int) -> None:
    for x, y in (with_common_rows(), [draw(5, 3072)] * 2):
        expected = reference(x, y, depth=depth).to(DEVICE)
        torch.testing.assert_close(tangent_kernel(x, y, depth), expected, rtol=1e-12, atol=1e-13)


def test_images_are_their_rows_in_float64() -> None:
    x, y = draw(4, 1, 2, 3).float(), draw(5, 1, 2, 3, seed=1).float()
    found = tangent_kernel(x, y, 4)
    assert (found.dtype, found.shape) == (torch.float64, (4, 5))
    assert torch.equal(found, tangent_kernel(x.flatten(1).double(), y.flatten(1).double(), 4))


@depths
def test_the_kernels_gradients_are_those_of_differences(depth: int) -> None:
    x, y = draw(4, 3).requires_grad_(), draw(3, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: tangent_kernel(a, b, depth), (x, y))
    assert torch.autograd.gradcheck(lambda a: tangent_kernel(a, a, depth), (x,), atol=1e-4)


def test_of_equal_rows_the_gradient_is_the_mean_of_the_slopes_of_both_sides() -> None:
    x, y = with_common_rows()
    y.requires_grad_()
    (found,) = torch.autograd.grad(tangent_kernel(x, y, 4)[2, 3], y)
    away = torch.zeros_like(y)
    away[3] = draw(7, seed=2)
    with torch.no_grad():
        here, ahead, behind = (tangent_kernel(x, y + s * away, 4)[2, 3] for s in (0, 1e-4, -1e-4))
    slopes = (ahead - here).item() * 1e4, (here - behind).item() * 1e4
    assert slopes[1] - slopes[0] > 1  # a cusp
    assert (found * away).sum().item() == pytest.approx(sum(slopes) / 2, rel=1e-4)


def test_opposite_and_empty_rows_have_finite_gradients() -> None:
    row = draw(1, 4)
    x = torch.cat((row, -row, torch.zeros_like(row))).requires_grad_()
    (gradient,) = torch.autograd.grad(tangent_kernel(x, x, 4).sum(), x)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("depth", [1, 4])
def test_predictions_are_ridge_regression_with_the_reference_kernel(depth: int) -> None:
    support, targets = draw(6, 5).cpu(), draw(4, 5, seed=1).cpu()
    inside, across = (reference(z, support, depth=depth) for z in (support, targets))
    shift = 0.1 * inside.trace() / 6 * torch.eye(6, dtype=torch.float64)
    own = labels(6).cpu()
    expected = across @ torch.linalg.solve(inside + shift, own)
    found, flaw = predictions(support, own, targets, ridge=0.1, depth=depth)
    assert FLAWS[flaw] == ""
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_support_that_is_the_targets_is_predicted() -> None:
    support = draw(6, 5)
    assert half_square(support, support, ridge=1e-12) < 1e-12


@pytest.mark.parametrize("common", [0, 2])
def test_the_loss_s_gradient_is_that_of_differences_also_where_targets_are_in_the_support(
    common: int,
) -> None:
    support, targets = draw(6, 5), draw(4, 5, seed=1)
    targets[:common] = support[3 : 3 + common]
    (found,) = torch.autograd.grad(half_square(support.requires_grad_(), targets), support)
    expected, step = torch.zeros_like(found), 1e-5
    for place in range(found.numel()):
        move = torch.zeros_like(found)
        move.view(-1)[place] = step
        with torch.no_grad():
            ahead, behind = (half_square(support + s * move, targets) for s in (1, -1))
        expected.view(-1)[place] = (ahead - behind) / (2 * step)
    close = 1e-3 if common else 1e-5
    size = expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=close, atol=close * size)


def test_equal_rows_in_the_support_are_no_obstacle() -> None:
    support = draw(6, 5)
    support[1] = support[0]
    half_square(support.requires_grad_(), draw(4, 5, seed=1)).backward()
    assert support.grad is not None
    assert support.grad.isfinite().all()


def test_a_support_is_learned() -> None:
    support, targets = draw(6, 5).requires_grad_(), draw(4, 5, seed=1)
    optimizer = torch.optim.Adam([support], lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = half_square(support, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_what_has_no_prediction_is_told() -> None:
    def flaw(support: Tensor, targets: Tensor, ridge: float) -> str:
        own = labels(len(support))
        return FLAWS[predictions(support, own, targets, ridge=ridge, depth=4)[1]]

    rows = draw(3, 5)
    for bad in (rows * math.nan, rows / 0, rows * 1e200):
        for support, targets in ((bad, rows), (rows, bad)):
            assert flaw(support, targets, 1e-6).startswith("support or targets hold NaN, infinity")
    assert flaw(rows[[0] * 20], rows, 1e-300) == "the kernel is singular: the ridge is too small"
