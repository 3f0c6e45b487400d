"""A dense CVAE's fused operations as Triton kernels: the same as their twins, one launch each.

That the twins are the formula, tests/fl/training/test_dense_cvae.py holds against autograd.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from fl.training import slots
from fl.training.generator import GeneratorConfig
from kernels import cvae
from kernels.groups import interpreted
from tests.fl.operations import Operations
from tests.fl.training.cohorts import assert_close, inputs, recipe_for
from tests.kernels.cases import DEVICE, compiled_elsewhere, interpreted_or_on_cuda

pytestmark = pytest.mark.gpu
ALLOCATIONS = {"empty", "new_empty", "empty_like"}
CHANGED = {
    **{"reparameterise": (0,), "cross_entropy": (0, 3), "end_layer": (0, 2)},
    **{"end_layer, last": (2,), "count": (2, 3)},
}
"""Of the operations that write to their arguments, those."""
NAN = float("nan")


def arguments(slots: int, size: int, latent: int, classes: int) -> dict[str, tuple[Any, ...]]:
    """Of each operation, for so many slots with so many rows of 1,100 pixels, more than a block;
    by case."""
    draws = torch.Generator().manual_seed(slots * size)
    pixels, steps, rows = 1100, 3, 5

    def normal(*shape: int) -> Tensor:
        return torch.randn(slots, size, *shape, generator=draws)

    images = torch.rand(rows, pixels, generator=draws)
    ahead = torch.randn(steps, slots, size, latent + 1, generator=draws)
    labels = torch.arange(rows) % classes
    order = torch.randint(rows, (steps, slots, size), generator=draws)
    now, noise, shares = torch.tensor([2]), ahead[..., 1:].contiguous(), ahead[..., 0].contiguous()
    inputs = normal(pixels + classes).sigmoid()
    heads, logits = 8 * normal(2 * latent), 20 * normal(pixels)
    heads[0, 0, 0] = logits[0, 0, 0] = heads[-1, -1, -1] = NAN
    bias = normal(400)[:, 0, 70:370]  # cut out of a larger tensor
    gradient = normal(300)
    return {
        "take": (images, labels, order, noise, shares, now, classes),
        "reparameterise": (heads, normal(latent), inputs[..., -classes:], 10.0),
        "cross_entropy": (logits, inputs[..., :pixels], normal().relu(), normal()),
        "of_heads": (normal(latent + classes), heads, normal(latent), normal()),
        "end_layer": (gradient, normal(300).relu(), bias),
        "end_layer, last": (gradient, None, bias),
        "count": (normal(), normal().relu(), torch.zeros(steps, slots), now),
    }


CASES = list(arguments(1, 1, 1, 1))


def outcome(operation: Any, case: str, given: tuple[Any, ...]) -> list[Tensor]:
    """What it returns, and what it wrote to copies of its arguments, which have their strides."""
    own = [
        torch.empty_strided(g.shape, g.stride(), dtype=g.dtype, device=DEVICE).copy_(g)
        if isinstance(g, Tensor)
        else g
        for g in given
    ]
    returned = operation(*own)
    found = [returned] if isinstance(returned, Tensor) else [*(returned or ())]
    return [*found, *(own[k] for k in CHANGED.get(case, ()))]


@interpreted_or_on_cuda
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(3, 5, 4, 3), (1, 1, 1, 1), (2, 70, 20, 47)], ids=str)
def test_a_kernel_is_its_twin(case: str, shape: tuple[int, ...]) -> None:
    from kernels import triton_cvae

    name, given = case.partition(",")[0], arguments(*shape)[case]
    ours, twins = (outcome(getattr(own, name), case, given) for own in (triton_cvae, cvae))
    torch.testing.assert_close(ours, twins, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_operation_writes_to_nothing_but_what_it_says(case: str) -> None:
    operation, given = getattr(cvae.fused, case.partition(",")[0]), arguments(3, 5, 4, 3)[case]
    torch.library.opcheck(operation, given, test_utils="test_schema")


@interpreted_or_on_cuda
@pytest.mark.parametrize("case", CASES)
def test_it_is_one_launch(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels import triton_cvae

    launches, kind = [], type(triton_cvae.take_kernel)
    launch = kind.run

    def run(kernel: Any, *own: Any, **how: Any) -> None:
        before = len(seen.names)
        launch(kernel, *own, **how)
        del seen.names[before:]  # the interpreter copies memory
        launches.append(kernel)

    monkeypatch.setattr(kind, "run", run)
    given = arguments(2, 3, 4, 3)[case]
    on_device = [g.to(DEVICE) if isinstance(g, Tensor) else g for g in given]
    with Operations() as seen:
        getattr(triton_cvae, case.partition(",")[0])(*on_device)
    assert len(launches) == 1
    assert set(seen.names) <= ALLOCATIONS


@interpreted_or_on_cuda
@pytest.mark.parametrize("case", ["reparameterise", "cross_entropy", "of_heads", "end_layer"])
def test_a_slots_bits_do_not_depend_on_its_company(case: str) -> None:
    from kernels import triton_cvae

    given = arguments(3, 5, 4, 3)[case]
    others = [g.index_fill(0, torch.tensor(0), 7) if isinstance(g, Tensor) else g for g in given]
    for one, other in zip(
        outcome(getattr(triton_cvae, case), case, given),
        outcome(getattr(triton_cvae, case), case, tuple(others)),
        strict=True,
    ):
        assert not one[0].equal(other[0])
        assert one[1:].nan_to_num(7).equal(other[1:].nan_to_num(7))


@interpreted_or_on_cuda
def test_a_row_whose_label_is_out_of_range_has_none() -> None:
    """And no pixel is overwritten."""
    from kernels import triton_cvae

    images, _, *others = arguments(1, 2, 4, 3)["take"]
    labels = torch.tensor([-100, -1, 3, 4, -1103]).to(DEVICE)
    given = [g.to(DEVICE) if isinstance(g, Tensor) else g for g in (images, labels, *others)]
    found, twins = triton_cvae.take(*given)[0], cvae.take(*given)[0]
    assert found.equal(twins)


@pytest.mark.skipif(not interpreted(), reason="test_slots.py has the same for a real GPU")
def test_clients_train_by_the_kernels_as_by_the_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    training = GeneratorConfig(latent=4, width=0.1, epochs=2, batch_size=4)
    cohort = [inputs(training, size, k) for k, size in enumerate((7, 3))]
    twins = slots.train([recipe_for(own) for own in cohort], 3)
    monkeypatch.setattr(cvae, "resolve", lambda backend, device: "triton")
    kernels = slots.train([recipe_for(own) for own in cohort], 3)
    for one, other in zip(kernels, twins, strict=True):
        assert_close(one, other)
        assert one.losses == pytest.approx(other.losses, rel=1e-5)


FLOATS = "heads noise z kl by_logvar onehot logits shares losses images of_z of_kl out gradient"
FLOATS += " seen of_bias inputs own_noise own_shares"
TYPES = {**dict.fromkeys(FLOATS.split(), "*fp32"), "bound": "fp32"}
TYPES |= dict.fromkeys(("labels", "order", "now"), "*i64")
KERNELS: dict[str, tuple[dict[str, Any], int]] = {
    "take": ({"block": 1024}, 4),
    "reparameterise": ({"block": 32}, 1),
    "cross_entropy": ({"block": 1024}, 4),
    "of_heads": ({"block": 32}, 1),
    "end_layer": ({"block": 128, "has_relu": True}, 4),
    "count": ({"tile": 64}, 4),
}


@pytest.mark.slow
@compiled_elsewhere
@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles_without_spills(name: str, arch: int) -> None:
    from compiled import compile_for, used

    from kernels import triton_cvae

    kernel, (constants, warps) = getattr(triton_cvae, f"{name}_kernel"), KERNELS[name]
    types = {n: TYPES.get(n, "i32") for n in kernel.arg_names if n not in constants}
    pointers = [n for n, kind in types.items() if kind.startswith("*")]
    binary = compile_for(arch, kernel, types, constants, pointers, warps)
    assert used(binary)["LOCAL"] == 0
