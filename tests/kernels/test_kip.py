"""KIP's regression: what it predicts, its loss, and the gradient by the support."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import centred, kip_accuracy, kip_loss
from kernels.kip import predictions
from kernels.tangent_reference import tangent_kernel
from tests.kernels.cases import DEVICE

pytestmark = pytest.mark.gpu

CLASSES = 3


def draw(*shape: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=torch.float64).to(DEVICE)


def labels(count: int) -> Tensor:
    return centred(torch.arange(count, device=DEVICE) % CLASSES, CLASSES)


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return draw(6, 5), labels(6), draw(4, 5, seed=1), labels(4)


def differences(loss: Callable[[Tensor], Tensor], at: Tensor, step: float) -> Tensor:
    """Central differences of a loss by every value."""
    found = torch.zeros_like(at)
    for place in range(at.numel()):
        move = torch.zeros_like(at)
        move.view(-1)[place] = step
        found.view(-1)[place] = (loss(at + move) - loss(at - move)) / (2 * step)
    return found


def test_labels_are_one_hot_around_zero() -> None:
    found = centred(torch.tensor([[0, 1, 1]]), 4)
    assert found.tolist() == [[[0.75, -0.25, -0.25, -0.25], *[[-0.25, 0.75, -0.25, -0.25]] * 2]]
    assert found.dtype == torch.float64
    with pytest.raises(ValueError, match=r"^labels must be in \[0, 4\)$"):
        centred(torch.tensor([1, 4]), 4)
    with pytest.raises(ValueError, match=r"^labels must be int64, got torch.float32$"):
        centred(torch.ones(2), 4)


@pytest.mark.parametrize("depth", [1, 4])
def test_it_is_ridge_regression_with_the_reference_kernel(depth: int) -> None:
    support, y_s, targets, y_t = (t.cpu() for t in problem())
    inside, across = (tangent_kernel(z, support, depth=depth) for z in (support, targets))
    shift = 0.1 * inside.trace() / 6 * torch.eye(6, dtype=torch.float64)
    expected = across @ torch.linalg.solve(inside + shift, y_s)
    found = predictions(support, y_s, targets, ridge=0.1, depth=depth)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    loss = kip_loss(support, y_s, targets, y_t, ridge=0.1, depth=depth)
    assert loss.item() == pytest.approx(0.5 * ((expected - y_t) ** 2).mean().item())
    accuracy = kip_accuracy(support, y_s, targets, y_t, ridge=0.1, depth=depth)
    assert accuracy.item() == (expected.argmax(1) == torch.arange(4) % CLASSES).double().mean()


def test_a_support_that_is_the_targets_has_no_loss() -> None:
    support, y_s, _, _ = problem()
    assert kip_loss(support, y_s, support, y_s, ridge=1e-12) < 1e-12
    assert kip_accuracy(support, y_s, support, y_s, ridge=1e-12) == 1


def test_the_gradient_is_that_of_differences() -> None:
    support, y_s, targets, y_t = problem()
    support.requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return kip_loss(x, y_s, targets, y_t)

    (found,) = torch.autograd.grad(loss(support), support)
    expected = differences(loss, support.detach(), 1e-5)
    close = 1e-5 * expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=close)


def test_labels_and_targets_have_gradients_too() -> None:
    given = [t.requires_grad_() for t in problem()]
    assert torch.autograd.gradcheck(lambda *a: kip_loss(*a, ridge=0.1, depth=2), given)


def test_where_rows_of_the_support_are_targets_the_gradient_is_finite() -> None:
    """There it is that of central differences: the cusp of Θ is as steep on either side."""
    support, y_s, targets, y_t = problem()
    targets[:2] = support[3:5]
    support.requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return kip_loss(x, y_s, targets, y_t)

    (found,) = torch.autograd.grad(loss(support), support)
    assert found.isfinite().all()
    expected = differences(loss, support.detach(), 1e-5)
    size = expected.abs().max().item()
    others = [0, 1, 2, 5]
    torch.testing.assert_close(found[others], expected[others], rtol=1e-5, atol=1e-5 * size)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * size)


def test_equal_rows_in_the_support_are_no_obstacle() -> None:
    support, y_s, targets, y_t = problem()
    support[1] = support[0]
    support.requires_grad_()
    kip_loss(support, y_s, targets, y_t).backward()
    assert support.grad is not None
    assert support.grad.isfinite().all()


def test_several_clients_are_each_of_them_alone() -> None:
    support, targets = draw(3, 6, 1, 2, 2).float(), draw(3, 4, 1, 2, 2, seed=1).float()
    y_s, y_t = labels(6).repeat(3, 1, 1), labels(4).flip(0).repeat(3, 1, 1)
    support.requires_grad_()
    losses = kip_loss(support, y_s, targets, y_t)
    (found,) = torch.autograd.grad(losses.sum(), support)
    assert found.dtype == torch.float32
    accuracies = kip_accuracy(support, y_s, targets, y_t)
    for b in range(3):
        own = support[b].detach().requires_grad_()
        loss = kip_loss(own, y_s[b], targets[b], y_t[b])
        torch.testing.assert_close(losses[b], loss, rtol=1e-9, atol=0)
        (alone,) = torch.autograd.grad(loss, own)
        torch.testing.assert_close(found[b], alone, rtol=1e-5, atol=1e-7)
        assert accuracies[b] == kip_accuracy(own, y_s[b], targets[b], y_t[b])


def test_a_support_is_learned() -> None:
    support, y_s, targets, y_t = problem()
    support.requires_grad_()
    optimizer = torch.optim.Adam([support], lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = kip_loss(support, y_s, targets, y_t)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


X, Y = torch.zeros(2, 3) + torch.eye(2, 3), torch.zeros(2, CLASSES)
NAN = X * math.nan


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((X[:0], Y[:0], X, Y), r"one is empty: \(0, 3\), \(0, 3\), \(2, 3\)$"),
        ((X, Y, X[:0], Y[:0]), "one is empty"),
        ((X[:, :0], Y, X[:, :0], Y), "one is empty"),
        ((X, Y[:1], X, Y), "one does not fit"),
        ((X, Y, X[:, :2], Y), "one does not fit"),
        ((X, Y[0], X, Y), "one does not fit"),
        ((X.expand(1, 2, 3), Y.expand(1, 2, 3), X.expand(2, 2, 3), Y), "one does not fit"),
        ((X, Y, X, Y[:1]), r"target labels must be \(2, 3\) on cpu, got \(1, 3\) on cpu"),
        ((X, Y.long(), X, Y), "must be floating point"),
        ((X, Y, X.to("meta"), Y), "must share a device"),
        ((X, Y, X, Y.to("meta")), "on meta"),
        ((NAN, Y, X, Y), "^support has NaN or infinite values$"),
        ((X, NAN, X, Y), "^support_labels has NaN or infinite values$"),
        ((X, Y, X / 0, Y), "^targets has NaN or infinite values$"),
        ((X, Y, X, NAN), "^target_labels has NaN or infinite values$"),
        ((X.double() * 1e200, Y, X.double(), Y), "^values are too large: their kernel overflows$"),
        ((X.double(), Y, X.double() * 1e200, Y), "^values are too large: their kernel overflows$"),
    ],
)
def test_unfit_input_is_refused(given: tuple[Tensor, ...], message: str) -> None:
    for function in (kip_loss, kip_accuracy):
        with pytest.raises(ValueError, match=message):
            function(*given)


def test_unfit_ridges_are_refused() -> None:
    for ridge in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"^ridge must be above 0, got"):
            predictions(X, Y, X, ridge=ridge)
    with pytest.raises(ValueError, match=r"^the kernel is singular: ridge 1e-300 is too small$"):
        predictions(X[[0] * 20], Y[[0] * 20], X, ridge=1e-300)
