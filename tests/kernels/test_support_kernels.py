"""The kernels of a support, each pair once, against those of `tangent_kernel`."""

import pytest
import torch
from torch import Tensor

from kernels import tangent_kernel
from kernels.support_kernels import support_kernels
from kernels.tangent_layers import Network
from kernels.tangent_reference import tangent_kernel as reference
from tests.kernels.cases import DEVICE

pytestmark = pytest.mark.gpu

SIZES = [(1, 1), (2, 3), (5, 1), (6, 4)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=torch.float64).to(DEVICE)


def by_tangent_kernel(
    support: Tensor, targets: Tensor, network: Network, ridge: float
) -> tuple[Tensor, Tensor]:
    options = {"weight_variance": network.weight_variance, "bias": network.bias}
    inside, across = (
        tangent_kernel(z, support, depth=network.depth, **options) for z in (support, targets)
    )
    own = inside.diagonal(dim1=-2, dim2=-1)
    shift = ridge * own.mean(-1, keepdim=True).expand_as(own)
    return inside + torch.diag_embed(shift), across


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_values_and_gradients(batch: tuple[int, ...], n: int, m: int) -> None:
    network = Network(depth=2, weight_variance=1.5, bias=0.3)
    given = [t.requires_grad_() for t in (draw(*batch, n, 5), draw(*batch, m, 5, seed=1))]
    found = support_kernels(*given, network, 0.1)
    expected = by_tangent_kernel(*given, network, 0.1)
    weights = draw(*batch, n, n, seed=2), draw(*batch, m, n, seed=3)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-13)
    assert torch.equal(found[0], found[0].mT)
    gradients = (torch.autograd.grad(kernels, given, weights) for kernels in (found, expected))
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-11)


def test_gradients_are_those_of_differences() -> None:
    given = [t.requires_grad_() for t in (draw(4, 3), draw(2, 3, seed=1))]
    assert torch.autograd.gradcheck(lambda x, z: support_kernels(x, z, Network(), 0.01), given)


def test_equal_rows_are_as_a_row_with_itself() -> None:
    x = draw(3, 5)
    inside, across = support_kernels(torch.cat((x, x)), x, Network(), 1e-15)
    own = reference(x, x).diagonal().to(DEVICE)
    for diagonal in (inside.diagonal()[:3], inside.diagonal(3), across.diagonal()):
        torch.testing.assert_close(diagonal, own, rtol=1e-12, atol=0)


def test_it_is_differentiable_once_and_says_so() -> None:
    x = draw(3, 4).requires_grad_()
    inside, _ = support_kernels(x, x.detach(), Network(), 0.1)
    with pytest.raises(RuntimeError, match="differentiable once, not with create_graph"):
        torch.autograd.grad(inside.sum(), x, create_graph=True)
