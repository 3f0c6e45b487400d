"""Inside a run the arithmetic of GPUs is the same for all passes; after it, the user's own.

And what becomes of freed memory.
"""

import ctypes
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

from fl.exchange import unpack
from fl.executor import run_jobs
from fl.federation import Job, TaskInput, TaskOutput
from fl.process import arithmetic, has_gpu
from tests.fl.toy import CPU, PROBLEM, client, split
from tests.pretended_gpu import pretended_gpus

GPU = torch.device("cuda")
Settings = tuple[str, str, str, bool, bool, bool]


def settings() -> Settings:
    cudnn = torch.backends.cudnn
    return (
        torch.backends.cuda.matmul.fp32_precision,
        cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        cudnn.rnn.fp32_precision,  # type: ignore[attr-defined]
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize(("tf32", "name"), [(False, "ieee"), (True, "tf32")])
def test_convolutions_and_products_are_rounded_alike_and_repeat(tf32: bool, name: str) -> None:
    before = settings()
    with suppress(KeyboardInterrupt), arithmetic(GPU, tf32=tf32):
        assert settings() == (name, name, name, True, True, False)
        raise KeyboardInterrupt
    assert settings() == before


def test_one_inside_another_gives_back_the_outer_ones() -> None:
    with arithmetic(GPU, tf32=True):
        outer = settings()
        with arithmetic(GPU, tf32=False):
            assert settings() != outer
        assert settings() == outer


def test_a_gpu_is_looked_for_once_and_again_when_others_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def ask() -> bool:
        asked.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return asked[-1] == "0"

    monkeypatch.setattr(torch.cuda, "is_available", ask)
    for chosen, there in (("0", True), ("", False), ("0", True)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert [has_gpu(), has_gpu()] == [there, there]
    assert asked == ["0", ""]


def test_on_the_cpu_the_gpus_settings_stay() -> None:
    before = settings()
    with arithmetic(CPU, tf32=True):
        assert settings() == before


def test_on_the_cpu_a_users_faster_arithmetic_holds_outside_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(512, 512, generator=generator) for _ in range(2))
    products, tiny = a @ b, torch.tensor(1e-40)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.set_flush_denormal(True)
        with arithmetic(CPU, tf32=False):
            assert torch.equal(a @ b, products)
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"  # type: ignore[attr-defined]
            assert tiny * 1.0 > 0
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"  # type: ignore[attr-defined]
        assert tiny * 1.0 == 0
    finally:
        torch.set_float32_matmul_precision(before)
        torch.set_flush_denormal(False)


def tells(inputs: TaskInput) -> TaskOutput:
    told = settings()
    return TaskOutput(tensors={}, stats={"tf32": told[:3].count("tf32"), "repeats": told[3]})


@pytest.mark.parametrize(("tf32", "rounded"), [(False, 0), (True, 3)])
def test_a_client_on_a_gpu_trains_in_the_runs_arithmetic(tf32: bool, rounded: int) -> None:
    job = Job(
        task=tells, client=client(0), run_spec=replace(PROBLEM, tf32=tf32), indices=np.arange(3)
    )
    with pretended_gpus():
        _, note = unpack(run_jobs([job], split(3))[0])
    assert note["stats"] == {"tf32": rounded, "repeats": True}


MIB = 2**20

STEPS = """
import ctypes
from pathlib import Path
import torch
from fl.process import retain_freed_memory, return_freed_memory

class Mallinfo2(ctypes.Structure):  # what glibc's allocator tells of itself
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd",
        "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

def step():  # as training does: several tensors of megabytes, all freed at the end
    return [torch.ones(2**20) for _ in range(60)]

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo2
retain_freed_memory()
for _ in range(3):
    step()
free = libc.mallinfo2().fordblks  # bytes free, and not given back
held = [torch.ones(2**18) for _ in range(100)]
above = torch.ones(2**18)  # in use: what is below it stays in the heap when it is freed
full = resident()
del held
before = resident()
return_freed_memory()
print(free, full - before, before - resident())
"""


@pytest.mark.process
@pytest.mark.skipif(
    not (hasattr(ctypes.CDLL(None), "mallinfo2") and hasattr(ctypes.CDLL(None), "malloc_trim")),
    reason="only glibc tells, and can",
)
def test_freed_memory_is_kept_for_the_next_step_and_returned_when_it_is_asked_for() -> None:
    """Asked of the allocator: page faults are counted differently from kernel to kernel.

    Without retain_freed_memory most runs keep less than 40 MiB here, but not all.
    """
    command = [sys.executable, "-c", STEPS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    free, kept, returned = map(int, done.stdout.split())
    assert free >= 60 * 4 * MIB
    assert kept < 10 * MIB
    assert returned > 60 * MIB
