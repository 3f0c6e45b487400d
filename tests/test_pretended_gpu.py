"""The pretended GPU allows what CUDA allows, refuses what it refuses, and says where things are."""

import ast
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.contracts import contract
from tests.pretended_gpu import PretendedGpus, pretended_gpus, torch_internals
from tests.test_internals import internals

CPU, GPU, OTHER = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
MIXED = "Expected all tensors to be on the same device"


@pytest.fixture
def gpus() -> Iterator[PretendedGpus]:
    with pretended_gpus(2) as made:
        yield made


pretended = pytest.mark.usefixtures("gpus")


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


REFUSED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda gpu, cpu: gpu + cpu,
    "add in place": lambda gpu, cpu: gpu.add_(cpu),
    "concatenate": lambda gpu, cpu: torch.cat([gpu, cpu]),
    "stack": lambda gpu, cpu: torch.stack([gpu, cpu]),
    "where": lambda gpu, cpu: torch.where(cpu > 0, gpu, gpu),
    "cross-entropy": lambda gpu, cpu: F.cross_entropy(gpu, torch.tensor([0, 1, 2])),
    "index_select": lambda gpu, cpu: gpu.index_select(0, torch.tensor([0])),
    "out": lambda gpu, cpu: torch.mm(gpu, gpu.T, out=cpu),
    "equal": lambda gpu, cpu: torch.equal(gpu, cpu),
    "values of an index": lambda gpu, cpu: gpu.index_put_((torch.tensor([0, 1]),), cpu[:2]),
    "values of a mask": lambda gpu, cpu: gpu.__setitem__(gpu >= 0, cpu.flatten()),
    "a GPU's number on the CPU": lambda gpu, cpu: cpu * gpu.sum(),
    "a CPU's number in place": lambda gpu, cpu: cpu.sum().add_(gpu.sum()),
    "a number in a list": lambda gpu, cpu: torch.stack([gpu.sum(), cpu.sum()]),
    "a product with a number": lambda gpu, cpu: torch.outer(gpu[0], cpu[0]),
    "two GPUs": lambda gpu, cpu: gpu + cpu.to(OTHER),
    "two GPUs' numbers": lambda gpu, cpu: gpu.sum() + cpu.to(OTHER).sum(),
    "batch norm": lambda gpu, cpu: nn.BatchNorm1d(3)(gpu),
    "fused": lambda gpu, cpu: torch._fused_sgd_(
        [gpu],
        [cpu],
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=1.0,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=True,
    ),
}


@pretended
@pytest.mark.parametrize("operation", REFUSED.values(), ids=REFUSED)
def test_devices_are_not_mixed(operation: Callable[[Tensor, Tensor], Any]) -> None:
    with pytest.raises(RuntimeError, match=MIXED):
        operation(torch.ones(3, 3, device="cuda"), torch.ones(3, 3))


@pretended
def test_a_gpus_indices_do_not_index_the_cpu() -> None:
    index = torch.tensor([0], device="cuda")
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same"):
        torch.ones(3)[index]


@pretended
@pytest.mark.parametrize("read", [lambda x: x.numpy(), np.asarray, np.array])
def test_numpy_reads_no_gpu(read: Callable[[Tensor], Any]) -> None:
    x = torch.ones(2, device="cuda")
    with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy"):
        read(x)
    assert read(x.cpu()) is not None
    assert x.numpy(force=True).tolist() == x.tolist() == [1, 1]
    assert float(x.sum()) == x.sum().item() == 2


@pretended
def test_a_generator_draws_on_its_own_device_alone() -> None:
    assert torch.Generator().device == CPU
    there = torch.Generator("cuda").manual_seed(3)
    assert there.device == GPU
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        torch.rand(2, generator=there)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(2, generator=torch.Generator(), device="cuda")
    state = there.get_state()
    first = torch.rand(2, generator=there, device="cuda")
    there.set_state(state)
    assert torch.equal(first, torch.rand(2, generator=there, device="cuda"))


@pretended
def test_gradients_are_where_their_tensors_are() -> None:
    leaf = torch.ones(2, requires_grad=True)
    (leaf.to("cuda") * torch.arange(2, device="cuda")).sum().backward()
    assert leaf.grad is not None
    assert (leaf.grad.device, leaf.grad.tolist()) == (CPU, [0, 1])
    there = model().to("cuda")
    there(torch.rand(5, 3, device="cuda")).square().sum().backward()
    assert {p.grad.device for p in there.parameters() if p.grad is not None} == {GPU}
    (gradient,) = torch.autograd.grad(there(torch.rand(5, 3).cuda()).sum(), there[0].weight)
    assert gradient.device == GPU
    with pytest.raises(RuntimeError, match="assigned grad has data located on a different device"):
        there[0].weight.grad = torch.zeros(4, 3)


@pytest.mark.parametrize("mixes", [False, True])
@pretended
def test_a_backward_pass_in_python_is_watched_too(mixes: bool) -> None:
    seen = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            seen.append(gradient.device)
            return gradient * torch.full((3,), 2.0, device="cpu" if mixes else gradient.device)

    x = torch.ones(3, device="cuda", requires_grad=True)
    if mixes:
        with pytest.raises(RuntimeError, match=MIXED):
            Doubled.apply(x).sum().backward()
    else:
        Doubled.apply(x).sum().backward()
        assert torch.autograd.grad(Doubled.apply(x).sum(), x)[0].tolist() == [2, 2, 2]
    assert set(seen) == {GPU}


@pretended
def test_there_are_no_other_gpus() -> None:
    for use in (torch.cuda.set_device, torch.zeros(1).to, torch.cuda.get_device_properties):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            use(2)
    with pytest.raises(ValueError, match="a specified index"):  # as torch has it
        torch.cuda.set_device(torch.device("cuda"))


def test_other_threads_join_by_themselves(gpus: PretendedGpus) -> None:
    found = []

    def work() -> None:
        with gpus.in_this_thread():
            torch.cuda.set_device(1)
            x = torch.ones(2, device="cuda", requires_grad=True)
            x.sum().backward()
            assert x.grad is not None
            found.append(x.grad.device)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [OTHER]
    assert torch.cuda.current_device() == 0


def test_the_internals_are_as_they_were() -> None:
    with contract("torch", "what the pretence replaces", torch_internals.TESTED_WITH):
        for name in (torch_internals.START, *torch_internals.EXCHANGE):
            assert callable(getattr(torch.cuda, name))
        assert torch_internals.device_index("cuda:1") == 1
        x = torch.zeros(2)
        x.untyped_storage().told = "something"  # type: ignore[attr-defined]
        assert x[1:].untyped_storage().told == "something"  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted(Path(torch_internals.__file__).parent.glob("*.py")))
def test_one_file_alone_uses_internals(path: Path) -> None:
    found = [*internals(ast.parse(path.read_text()))]
    assert bool(found) == (path.name == "torch_internals.py"), found
