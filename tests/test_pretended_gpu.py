"""The pretended GPU allows what CUDA allows, refuses what it refuses, and says where things are."""

import ast
import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kernels.backends import resolve
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


def devices(module: nn.Module) -> set[torch.device]:
    return {tensor.device for tensor in module.state_dict().values()}


FACTORIES: dict[str, Callable[[Any], Tensor]] = {
    "zeros": lambda device: torch.zeros(3, device=device),
    "empty": lambda device: torch.empty((2, 3), device=device),
    "full": lambda device: torch.full((2,), 1.5, device=device),
    "arange": lambda device: torch.arange(3, device=device),
    "randn": lambda device: torch.randn(2, device=device),
    "randperm": lambda device: torch.randperm(4, device=device),
    "tensor": lambda device: torch.tensor([1, 2], device=device),
    "as_tensor": lambda device: torch.as_tensor(np.ones(2), device=device),
    "zeros_like": lambda device: torch.zeros_like(torch.ones(2), device=device),
    "new_zeros": lambda device: torch.ones(2).new_zeros(3, device=device),
    "new_tensor": lambda device: torch.ones(2).new_tensor([3], device=device),
    "to": lambda device: torch.ones(2).to(device),
    "to, by name": lambda device: torch.ones(2).to(device=device, dtype=torch.float64),
    "to, and a type": lambda device: torch.ones(2).to(device, torch.int64, non_blocking=True),
    "to, like another": lambda device: torch.ones(2).to(torch.zeros(1, device=device)),
    "pinned": lambda device: torch.ones(2).pin_memory().to(device, non_blocking=True),
    "layer": lambda device: nn.Linear(2, 2, device=device).weight,
    "generated": lambda device: torch.rand(
        2, device=device, generator=torch.Generator(device).manual_seed(1)
    ),
}


@pretended
@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
@pytest.mark.parametrize(
    ("named", "device"),
    [("cuda", GPU), (torch.device("cuda"), GPU), ("cuda:1", OTHER), ("cpu", CPU)],
)
def test_a_tensor_is_where_it_was_asked_for(
    make: Callable[[Any], Tensor], named: Any, device: torch.device
) -> None:
    made = make(named)
    assert made.device == device
    assert made.is_cuda == (device.type == "cuda")
    assert made.is_cpu == (device.type == "cpu")
    assert made.get_device() == (-1 if device.index is None else device.index)


@pretended
def test_a_number_names_a_gpu_and_cuda_the_current_one() -> None:
    assert torch.zeros(1).to(1).device == torch.zeros(1).cuda(1).device == OTHER
    assert torch.zeros(1).cuda().device == GPU
    with torch.cuda.device(1):
        assert torch.zeros(1).cuda().device == torch.zeros(1, device="cuda").device == OTHER
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(OTHER)
    assert torch.zeros(1, device="cuda").device == OTHER


@pretended
def test_what_is_not_asked_to_be_on_a_gpu_is_not() -> None:
    x = torch.ones(2, device="cuda")
    made = [torch.zeros(2), torch.tensor([1.0]), torch.from_numpy(np.ones(2)), nn.Linear(2, 2).bias]
    made += [torch.zeros_like(x, device="cpu"), x.cpu(), x.to("cpu"), x.to(CPU, torch.int64)]
    assert {tensor.device for tensor in made} == {CPU}


@pretended
def test_a_move_copies_and_staying_does_not() -> None:
    here = torch.ones(2)
    there = here.to("cuda")
    there += 1
    assert here.tolist() == [1, 1]
    assert there.to("cuda") is there
    assert there.to(GPU, torch.float32) is there
    assert here.cpu() is here
    assert there.to(OTHER).device == OTHER


RESULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(-1)[1:],
    "transposed": lambda x: x.T.contiguous(),
    "data": lambda x: x.data,
    "detached": lambda x: x.detach(),
    "parameter": lambda x: nn.Parameter(x),
    "sum": lambda x: x.sum(),
    "typed": lambda x: x.double(),
    "typed by to": lambda x: x.to(torch.int32),
    "layout": lambda x: x[None, None].to(memory_format=torch.channels_last),
    "number": lambda x: 2 * x + 1,
    "product": lambda x: x @ x.T,
    "concatenated": lambda x: torch.cat([x, x]),
    "split": lambda x: x.split(1)[1],
    "in place": lambda x: x.mul_(2),
    "like": lambda x: torch.randn_like(x),
    "new": lambda x: x.new_full((2,), 3.0),
    "new tensor": lambda x: x.new_tensor([1, 2]),
    "one-hot": lambda x: F.one_hot(x.long(), 9),
    "where": lambda x: torch.where(x > 2, x, 0.0),
    "nonzero": lambda x: x.nonzero(),
    "bincount": lambda x: x.long().flatten().bincount(minlength=9),
    "covariance": lambda x: x.cov(),
    "sum of two": lambda x: torch.einsum("ij,kj->ik", x, x),
    "normalised": lambda x: F.normalize(x, dim=1),
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
    "copied": lambda x: copy.deepcopy(x),
    "a parameter, copied": lambda x: copy.deepcopy(nn.Parameter(x)),
}


@pretended
@pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS)
def test_what_is_made_of_a_gpus_tensor_is_there_too(make: Callable[[Tensor], Tensor]) -> None:
    assert make(torch.arange(6.0, device=OTHER).view(2, 3)).device == OTHER


REFUSED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda gpu, cpu: gpu + cpu,
    "add in place": lambda gpu, cpu: gpu.add_(cpu),
    "compare": lambda gpu, cpu: gpu == cpu,
    "product": lambda gpu, cpu: gpu @ cpu.T,
    "linear": lambda gpu, cpu: F.linear(gpu, cpu),
    "concatenate": lambda gpu, cpu: torch.cat([gpu, cpu]),
    "stack": lambda gpu, cpu: torch.stack([gpu, cpu]),
    "where": lambda gpu, cpu: torch.where(cpu > 0, gpu, gpu),
    "cross-entropy": lambda gpu, cpu: F.cross_entropy(gpu, torch.tensor([0, 1, 2])),
    "embedding": lambda gpu, cpu: F.embedding(torch.tensor([0]), gpu),
    "index_select": lambda gpu, cpu: gpu.index_select(0, torch.tensor([0])),
    "gather": lambda gpu, cpu: gpu.gather(0, cpu.long()),
    "index_add": lambda gpu, cpu: gpu.index_add_(0, torch.arange(3), gpu.clone()),
    "searchsorted": lambda gpu, cpu: torch.searchsorted(gpu, cpu),
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
def test_a_refusal_names_operator_and_devices() -> None:
    layer = nn.Linear(3, 2).to("cuda")
    with pytest.raises(RuntimeError, match=r"cuda:0 and cpu! .*aten\.addmm"):
        layer(torch.ones(1, 3))


ALLOWED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "number": lambda gpu, cpu: gpu * cpu.sum(),
    "number first": lambda gpu, cpu: cpu.sum() - gpu,
    "number of each": lambda gpu, cpu: gpu.sum() + cpu.sum(),
    "number in place": lambda gpu, cpu: gpu.div_(cpu.sum()),
    "number filled in": lambda gpu, cpu: gpu.masked_fill(gpu > 0, cpu.sum()),
    "number put in": lambda gpu, cpu: gpu.index_put((gpu.long()[0],), cpu.sum()),
    "number where": lambda gpu, cpu: torch.where(gpu > 0, gpu, cpu.sum()),
    "lerp": lambda gpu, cpu: gpu.lerp(gpu + 1, cpu.mean()),
    "index": lambda gpu, cpu: gpu[torch.tensor([0, 2])],
    "mask": lambda gpu, cpu: gpu[cpu > 0],
    "one index": lambda gpu, cpu: gpu[torch.tensor(1)],
    "indices of both": lambda gpu, cpu: gpu[torch.tensor([0]), torch.tensor([1]).cuda()],
    "written to an index": lambda gpu, cpu: gpu.index_put((torch.tensor([0]),), gpu[:1]),
    "copied in": lambda gpu, cpu: gpu.copy_(cpu),
    "written to a slice": lambda gpu, cpu: gpu[1:].copy_(cpu[1:]),
}


@pretended
@pytest.mark.parametrize("operation", ALLOWED.values(), ids=ALLOWED)
def test_what_cuda_allows_is_allowed(operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert operation(torch.ones(3, 3, device="cuda"), torch.ones(3, 3)).device == GPU


@pretended
def test_writing_goes_across_devices_and_leaves_the_target_where_it_is() -> None:
    gpu, cpu = torch.zeros(2, 2, device="cuda"), torch.ones(2, 2)
    gpu[0] = cpu[0]
    gpu[:, 1] = 5.0
    cpu.copy_(gpu)
    assert (gpu.device, cpu.device) == (GPU, CPU)
    assert cpu.tolist() == gpu.tolist() == [[1, 5], [0, 5]]


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
def test_only_the_hosts_memory_can_be_pinned() -> None:
    assert torch.ones(2).pin_memory().tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device="cuda").pin_memory()


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
@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}])
def test_optimisers_step_and_gradients_are_clipped(how: dict[str, bool]) -> None:
    there = model().to("cuda")
    optimizer = torch.optim.Adam(there.parameters(), **how)
    for _ in range(2):
        optimizer.zero_grad()
        there(torch.rand(5, 3, device="cuda")).sum().backward()
        assert nn.utils.clip_grad_norm_(there.parameters(), 0.1).device == GPU
        optimizer.step()
    assert devices(there) == {GPU}


@pretended
def test_a_model_moves_is_copied_and_loaded() -> None:
    here = model()
    there = copy.deepcopy(here).to("cuda")
    assert (devices(here), devices(there)) == ({CPU}, {GPU})
    assert devices(copy.deepcopy(there)) == devices(pickle.loads(pickle.dumps(there))) == {GPU}
    there.load_state_dict(here.state_dict())
    assert devices(there) == {GPU}
    assert devices(there.to(memory_format=torch.channels_last).half()) == {GPU}
    assert devices(there.cpu()) == {CPU}


@pretended
@pytest.mark.parametrize(
    ("where", "found"),
    [(None, GPU), ("cpu", CPU), (CPU, CPU), ("cuda", GPU), ("cuda:1", OTHER), (OTHER, OTHER)],
)
def test_a_saved_state_is_loaded_where_it_is_asked_for(where: Any, found: torch.device) -> None:
    file = io.BytesIO()
    torch.save(model().to("cuda").state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, map_location=where, weights_only=True)
    assert {tensor.device for tensor in loaded.values()} == {found}


@pretended
@pytest.mark.parametrize(("where", "found"), [("cpu", CPU), ("cuda", GPU), ("cuda:1", OTHER)])
def test_safetensors_are_loaded_where_they_are_asked_for(
    tmp_path: Path, where: str, found: torch.device
) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.arange(6.0, device="cuda").view(2, 3)}, path)
    loaded = load_file(path, device=where)["a"]
    assert loaded.device == found
    assert loaded.tolist() == [[0, 1, 2], [3, 4, 5]]
    with safe_open(path, "pt", device=where) as file:
        assert file.get_tensor("a").device == file.get_slice("a")[:1].device == found


def test_cuda_says_what_there_is() -> None:
    assert not torch.cuda.is_available()
    with pretended_gpus(2, free_bytes=1000):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 2
        assert torch.cuda.get_device_name("cuda") == "Pretended GPU"
        gpu = torch.cuda.get_device_properties(torch.device("cuda"))
        assert torch.cuda.mem_get_info(GPU) == (1000, gpu.total_memory)
        assert gpu.uuid != torch.cuda.get_device_properties(1).uuid
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        torch.cuda.set_per_process_memory_fraction(0.5)
        assert torch.cuda.max_memory_reserved(GPU) == 0
    assert not torch.cuda.is_available()
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(1, device="cuda")


@pretended
def test_there_are_no_other_gpus() -> None:
    for use in (torch.cuda.set_device, torch.zeros(1).to, torch.cuda.get_device_properties):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            use(2)
    with pytest.raises(ValueError, match="a specified index"):  # as torch has it
        torch.cuda.set_device(torch.device("cuda"))


def test_cuda_starts_when_it_is_needed() -> None:
    with pretended_gpus():
        torch.manual_seed(0)
        torch.zeros(1)
        assert torch.cuda.device_count()
        assert not torch.cuda.is_initialized()
        with pytest.raises(RuntimeError, match="did you call init"):
            torch.cuda.reset_peak_memory_stats(0)
        torch.zeros(1, device="cuda")
        assert torch.cuda.is_initialized()
        torch.cuda.reset_peak_memory_stats(0)


@pretended
def test_global_streams_are_saved_and_restored() -> None:
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0]):
        first = torch.rand(3, device="cuda")
    assert torch.equal(torch.rand(3, device="cuda"), first)


@pretended
def test_autocast_and_the_filter_take_what_computes_here() -> None:
    with torch.autocast("cuda", torch.bfloat16):
        assert nn.Linear(2, 2, device="cuda")(torch.ones(1, 2).cuda()).dtype == torch.bfloat16
    assert resolve("auto", GPU) == "torch"


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


def test_bits_are_those_of_the_cpu() -> None:
    def train(device: str) -> Tensor:
        torch.manual_seed(0)
        there = model().to(device)
        optimizer = torch.optim.SGD(there.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            there(torch.rand(5, 3).to(device)).square().sum().backward()
            optimizer.step()
        return torch.cat([p.detach().flatten().cpu() for p in there.parameters()])

    expected = train("cpu")
    with pretended_gpus():
        assert torch.equal(train("cuda"), expected)


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
