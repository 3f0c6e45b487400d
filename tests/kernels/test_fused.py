"""Pieces of a training step by one kernel each: what torch computes by several."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import Fit, FitConfig, FitSpec
from fl.models.registry import build_classifier, in_fast_layout
from fl.seeding import seeded
from fl.training.masks import sample_keys
from kernels import backends
from kernels.backends import fuses
from kernels.dropout import drop, numbers_of
from tests.kernels.cases import DEVICE, HAS_TRITON, compiled_elsewhere, interpreted_or_on_cuda

pytestmark = pytest.mark.gpu


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """What the function gives, and the gradient of each input for uneven weights of it."""
    leaves = [x.clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    out = function(*leaves)
    weights = torch.linspace(-1, 2, out.numel(), device=out.device).view_as(out).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, weights)]


def assert_alike(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=2e-5, atol=1e-6)


@interpreted_or_on_cuda
@pytest.mark.parametrize("shape", [(5, 70), (130, 3), (1, 1), (0, 4)], ids=str)
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_triton_drops_of_a_hidden_layer_what_torch_drops(shape: tuple[int, int], p: float) -> None:
    from kernels.triton_fused import hidden

    keys = sample_keys(0, "fusion", 1, torch.arange(shape[0])).to(DEVICE)
    inputs = normal(*shape), normal(shape[1], seed=1)
    ours = with_gradients(lambda x, b: hidden(x, b, keys, *numbers_of(3, p)), *inputs)
    theirs = with_gradients(lambda x, b: drop((x + b).relu(), keys, 3, p, "torch"), *inputs)
    assert_alike(ours, theirs)
    assert torch.equal(ours[0] == 0, theirs[0] == 0)


@interpreted_or_on_cuda
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (3, 2, 7, 5), (1, 5, 2, 3), (0, 2, 4, 4)], ids=str)
def test_triton_pools_as_torch_does(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    """With ties, too: halves, of which many are equal."""
    from kernels.triton_fused import pooled

    x = (normal(*shape) * 2).round().div(2).contiguous(memory_format=layout)
    ours = with_gradients(pooled, x)
    theirs = with_gradients(lambda x: F.max_pool2d(x.relu(), 2), x)
    assert all(map(torch.equal, ours, theirs))
    assert not x.numel() or ours[0].is_contiguous(memory_format=layout)


@interpreted_or_on_cuda
@pytest.mark.parametrize("shape", [(5, 10), (1, 1), (70, 100)], ids=str)
def test_triton_finds_the_loss_of_labels_and_of_a_teacher(shape: tuple[int, int]) -> None:
    from kernels.triton_fused import distillation

    labels = torch.arange(shape[0], device=DEVICE) % shape[1]
    teacher = 3 * normal(*shape, seed=1)

    def plain(logits: Tensor) -> Tensor:
        student, wanted = logits.log_softmax(1), teacher.log_softmax(1)
        kl = F.kl_div(student, wanted, log_target=True, reduction="sum")
        return 0.3 * F.nll_loss(student, labels, reduction="sum") + 0.02 * kl

    ours = with_gradients(lambda x: distillation(x, labels, teacher, 0.3, 0.02), 2 * normal(*shape))
    assert_alike(ours, with_gradients(plain, 2 * normal(*shape)))


@interpreted_or_on_cuda
def test_triton_hides_no_number_that_is_not_finite() -> None:
    from kernels.triton_fused import distillation, hidden, pooled

    bad = normal(2, 2)
    bad[0, 1] = torch.nan
    keys = torch.arange(2, device=DEVICE)
    assert hidden(bad, bad[1], keys, *numbers_of(0, 0.5))[0, 1].isnan()
    assert pooled(bad.view(1, 1, 2, 2)).isnan().all()
    assert distillation(bad, keys, bad, 1, 1).isnan()
    for label in (-1, 2):
        labels = torch.tensor([0, label], device=DEVICE)
        assert distillation(normal(2, 2), labels, normal(2, 2), 1, 0).isnan()


@interpreted_or_on_cuda
def test_triton_records_a_loss_after_the_one_before() -> None:
    from kernels.triton_fused import record

    losses = torch.zeros(3, device=DEVICE)
    place = torch.tensor([1], device=DEVICE)
    record(losses, torch.tensor(2.0, device=DEVICE), place)
    record(losses, torch.tensor(3.0, device=DEVICE), place)
    assert losses.tolist() == [0, 2, 3]
    assert place.tolist() == [3]


@interpreted_or_on_cuda
def test_a_fit_by_triton_is_the_fit_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every kernel of a step, in channels-last layout."""

    def fitted() -> tuple[Tensor, dict[str, Tensor]]:
        with seeded(0, "test"):
            model = build_classifier("vgg9", (1, 24, 24), 3, width=0.05).to(DEVICE)
        columns = {"images": normal(20, 1, 24, 24).sigmoid(), "teacher_logits": normal(20, 3)}
        columns["labels"] = torch.arange(20, device=DEVICE) % 3
        loss = FusionLoss(ce_weight=0.7, kd_weight=0.3, kl_reduction="mean")
        config = FitConfig(epochs=2, batch_size=8, optimizer="sgd", lr=0.1)
        how = {"columns": {}, "loss": loss, "config": config, "stage": "f", "streams": "f"}
        fit = Fit(FitSpec(model=in_fast_layout(model), **how), columns, seed=0)
        return torch.cat(list(fit.epochs())), model.state_dict()

    if DEVICE.type == "cpu":
        monkeypatch.setattr(backends, "resolve", lambda backend, device: "triton")
    losses, state = fitted()
    monkeypatch.setattr(backends, "resolve", lambda backend, device: "torch")
    expected, plain = fitted()
    # A GPU may multiply in TF32, which makes more of a rounding.
    near = {"rtol": 1e-4, "atol": 1e-6} if DEVICE.type == "cpu" else {"rtol": 0.01, "atol": 1e-4}
    torch.testing.assert_close(losses, expected, **near)
    for name, tensor in plain.items():
        torch.testing.assert_close(state[name], tensor, **near)


def test_on_the_cpu_torch_computes_them() -> None:
    assert not fuses(torch.device("cpu"))
    assert fuses(DEVICE) == (DEVICE.type == "cuda" and HAS_TRITON)


I64, I32 = "*i64", "i32"
SIZES = dict.fromkeys(("num_rows", "num_classes", "count", "width", "channels", "height"), I32)
STRIDES = {f"{g}of_{d}": I32 for g in ("", "g_") for d in ("sample", "channel", "row", "column")}
SCALARS = {"ce": "fp32", "kd": "fp32", "scale": "fp32", "threshold": "i64", "first": "i64"}
NUMBERS = {"keys": I64, "labels": I64, "place": I64, "found": "*fp32", "losses": "*fp32"}
NUMBERS |= {"loss": "*fp32", "bias": "*fp32", "of_bias": "*fp32", "teacher": "*fp32"}
KERNELS = {
    "hidden_kernel": {"block": 1024},
    "hidden_gradient_kernel": {"rows": 64, "columns": 32},
    "pool_kernel": {"channels_last": True, "block": 1024},
    "pool_gradient_kernel": {"channels_last": False, "block": 1024},
    "distillation_kernel": {"rows": 64, "classes": 16},
    "distillation_gradient_kernel": {"rows": 4, "classes": 1024},
    "record_kernel": {},
}


@compiled_elsewhere
@pytest.mark.parametrize(
    ("values", "arch"), [("*fp32", 80), ("*fp32", 90), ("*fp32", 100), ("*bf16", 90)]
)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles_without_spills(name: str, values: str, arch: int) -> None:
    from compiled import compile_for, used

    from kernels import triton_fused

    kernel, constants = getattr(triton_fused, name), KERNELS[name]
    known = SIZES | STRIDES | SCALARS | NUMBERS
    types = {n: known.get(n, values) for n in kernel.arg_names if n not in constants}
    assert used(compile_for(arch, kernel, types, constants))["LOCAL"] == 0
