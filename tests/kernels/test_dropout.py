"""Random numbers by counter, and what is dropped by them: by torch and by one kernel."""

import pytest
import torch
from torch import Tensor

from fl.training.masks import sample_keys
from kernels.dropout import BITS, draw_bits, drop
from kernels.groups import interpreted
from tests.kernels.cases import DEVICE, compiled_elsewhere, fast_backends


def keys(count: int = 400, seed: int = 0, epoch: int = 1, purpose: str = "fusion") -> torch.Tensor:
    return sample_keys(seed, purpose, epoch, torch.arange(count))


def test_numbers_follow_from_the_sample_not_from_its_neighbours() -> None:
    whole = draw_bits(keys(), 1, 30)
    some = torch.tensor([7, 399, 0])
    assert torch.equal(draw_bits(keys()[some], 1, 30), whole[some])
    assert torch.equal(draw_bits(keys(), 1, 12), whole[:, :12])


def test_every_name_has_numbers_of_its_own() -> None:
    streams = [
        draw_bits(keys(), 0, 50),
        draw_bits(keys(), 1, 50),
        draw_bits(keys(seed=1), 0, 50),
        draw_bits(keys(epoch=2), 0, 50),
        draw_bits(keys(purpose="other"), 0, 50),
    ]
    for i, one in enumerate(streams):
        for other in streams[:i]:
            assert (one == other).float().mean() < 0.001
            both = torch.stack([one.flatten(), other.flatten()]).double()
            assert both.corrcoef()[0, 1].abs() < 0.03


def test_bits_are_uniform_and_independent() -> None:
    bits = draw_bits(keys(2000), 0, 64)
    assert bits.min() >= 0
    assert bits.max() < 2**BITS
    uniform = bits.double() / 2**BITS
    assert (uniform.mean(0) - 0.5).abs().max() < 0.04
    assert (uniform.mean(1) - 0.5).abs().max() < 0.19
    assert (uniform.T.corrcoef() - torch.eye(64)).abs().max() < 0.12
    assert (uniform[:64].corrcoef() - torch.eye(64)).abs().max() < 0.7
    for bit in (0, 1, 15, 16, 31):
        assert abs((bits >> bit & 1).double().mean() - 0.5) < 0.01


@pytest.mark.gpu
@fast_backends
@pytest.mark.parametrize("p", [0.1, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 3000), (3, 2, 4, 5), (1, 1), (0, 7)], ids=str)
def test_a_kernel_drops_what_torch_drops_and_passes_the_same_gradient(
    backend: str, p: float, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    def dropped(backend: str) -> tuple[Tensor, Tensor]:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
        x = x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()  # any strides
        out = drop(x, keys(shape[0]).to(DEVICE), 3, p, backend)
        (gradient,) = torch.autograd.grad(out, x, out.detach() + 1)
        return out.detach(), gradient

    ours, theirs = dropped("torch"), dropped(backend)
    assert torch.equal(ours[0] == 0, theirs[0] == 0)
    # Triton's interpreter cuts float32 to bfloat16 where a GPU rounds.
    if not (interpreted() and dtype == torch.bfloat16):
        assert all(map(torch.equal, ours, theirs))


@compiled_elsewhere
@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("x", ["*fp32", "*bf16"])
def test_the_kernel_compiles_without_spills(x: str, arch: int) -> None:
    from compiled import compile_for, used

    from kernels.triton_fused import drop_kernel

    types = {"x": x, "keys": "*i64", "out": x, "threshold": "i64", "scale": "fp32", "first": "i64"}
    types |= {"count": "i32", "width": "i32"}
    assert used(compile_for(arch, drop_kernel, types, {"block": 1024}))["LOCAL"] == 0
