"""One client's products: right, and the same bits wherever the rows lie."""

import pytest
import torch
from torch import Tensor

from fl.training import stacked
from fl.training.stacked import available, product

SHAPES = [(64, 794, 256), (8, 256, 784), (7, 30, 20), (1, 5, 3)]


@pytest.fixture(params=[False, True], ids=["onednn", "mkl"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    has = torch.backends.mkl if request.param else torch.backends.mkldnn
    if not has.is_available():
        pytest.skip("this torch is built without that library")
    monkeypatch.setattr(stacked, "uses_mkl", lambda: request.param)


def at(offset: int, x: Tensor) -> Tensor:
    """A copy of x that begins so many numbers after an aligned address."""
    bundle = torch.empty(offset + x.numel())
    return bundle[offset:].view(x.shape).copy_(x)


def result(a: Tensor, b: Tensor, add: Tensor | None, offset: int) -> Tensor:
    out = at(offset, torch.empty(len(a), b.shape[1]))
    product(a, b, add=add, out=out)
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_the_product_is_right_and_does_not_see_its_place(shape: tuple[int, int, int]) -> None:
    n, k, m = shape
    g = torch.Generator().manual_seed(n)
    a, b = torch.randn(n, k, generator=g), torch.randn(m, k, generator=g).t()
    for add in (None, torch.randn(m, generator=g)):
        there = result(a, b, add, 0)
        expected = a.double() @ b.double() + (0 if add is None else add.double())
        torch.testing.assert_close(there.double(), expected, rtol=1e-4, atol=1e-4)
        for offset in (1, 4, 13, 16):
            assert torch.equal(result(at(offset, a), b, add, offset), there)
            transposed = at(offset, a.t().contiguous()).t()
            aligned = a.t().contiguous().t()
            assert torch.equal(result(transposed, b, add, 0), result(aligned, b, add, 0))


def test_only_single_precision_rows_on_a_cpu_have_one() -> None:
    assert available(torch.zeros(2, 2))
    assert not available(torch.zeros(2, 2, dtype=torch.float64))
    assert not available(torch.zeros(2, 2, device="meta"))
