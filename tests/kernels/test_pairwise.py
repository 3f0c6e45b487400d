"""Pairwise squared distances against differences taken one by one in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels import pairwise_sq_distances
from kernels.pairwise import pairwise_op
from tests.kernels.cases import DEVICE, SEEDS, examples

pytestmark = pytest.mark.gpu


def differences(x: Tensor, y: Tensor) -> Tensor:
    return (x.double().unsqueeze(-2) - y.double().unsqueeze(-3)).square().sum(-1)


def draw(shape: tuple[int, ...], seed: int) -> Tensor:
    stream = np.random.default_rng(seed)
    return torch.tensor(stream.normal(size=shape).astype(np.float32), device=DEVICE)


@examples
@given(
    batch=st.integers(0, 3),
    n=st.integers(0, 9),
    m=st.integers(0, 9),
    features=st.integers(0, 40),
    magnitude=st.sampled_from([1e-15, 1.0, 1e15]),
    shift=st.sampled_from([0.0, 1.0, 1e4]),
    seed=SEEDS,
)
def test_it_is_the_sum_of_squared_differences(
    batch: int, n: int, m: int, features: int, magnitude: float, shift: float, seed: int
) -> None:
    x = (draw((batch, n, features), seed) + shift) * magnitude
    y = (draw((batch, m, features), seed + 1) + shift) * magnitude
    found = pairwise_sq_distances(x, y)
    assert (found.dtype, found.shape) == (torch.float32, (batch, n, m))
    torch.testing.assert_close(found, differences(x, y).float(), rtol=1e-5, atol=0)
    for b in range(batch):
        assert torch.equal(pairwise_sq_distances(x[b], y[b]), found[b])


def test_close_rows_far_from_the_others_keep_their_digits() -> None:
    """Two tight groups far apart: in float32 the Gram matrix gives noise within a group."""
    group = draw((5, 784), 0) * 1e-3
    x = torch.cat((group + 50, group - 50))
    found = pairwise_sq_distances(x, x)
    torch.testing.assert_close(found, differences(x, x).float(), rtol=1e-5, atol=0)


def test_equal_rows_are_at_distance_zero_and_none_is_below() -> None:
    x = draw((3, 40, 100), 1) * 7 + 3
    found = pairwise_sq_distances(x, x.clone())
    assert not found.diagonal(dim1=1, dim2=2).any()
    assert (found >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_points(dtype: torch.dtype) -> None:
    x, y = draw((4, 6), 0).to(dtype), draw((5, 6), 1).to(dtype)
    found = pairwise_sq_distances(x, y)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found, differences(x, y).to(found.dtype))


def test_gradients() -> None:
    x = draw((2, 4, 3), 0).double().requires_grad_()
    y = draw((2, 5, 3), 1).double().requires_grad_()
    assert torch.autograd.gradcheck(pairwise_sq_distances, (x, y))
    assert torch.autograd.gradgradcheck(pairwise_sq_distances, (x, y))
    single = x.detach().float().requires_grad_()
    pairwise_sq_distances(single, y.detach().float()).sum().backward()
    assert single.grad is not None
    assert single.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(3), torch.zeros(3), "must both be"),
        (torch.zeros(2, 3), torch.zeros(1, 2, 3), "must both be"),
        (torch.zeros(2, 3), torch.zeros(2, 4), "shapes do not fit"),
        (torch.zeros(1, 2, 3), torch.zeros(2, 2, 3), "shapes do not fit"),
        (torch.zeros(2, 3), torch.zeros(2, 3).half(), "share a floating type"),
        (torch.zeros(2, 3).long(), torch.zeros(2, 3).long(), "share a floating type"),
        (torch.zeros(2, 3), torch.zeros(2, 3, device="meta"), "y on meta"),
    ],
)
def test_what_does_not_fit_is_refused(x: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pairwise_sq_distances(x, y)


def test_torch_finds_nothing_wrong_with_the_operator() -> None:
    x = torch.rand(2, 6, 3, device=DEVICE, requires_grad=True)
    y = torch.rand(2, 4, 3, device=DEVICE, requires_grad=True)
    torch.library.opcheck(pairwise_op, (x, y))
    torch.library.opcheck(pairwise_op, (x.detach().half(), y.detach().half()))
