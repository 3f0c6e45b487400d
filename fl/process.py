"""What surrounds work in a process: how torch computes there, and the memory that it takes.

Inside :func:`arithmetic` a run computes with float32 exactly, or rounded to TF32 on a GPU, and
repeats its bits.
"""

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

PROC = Path("/proc")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""glibc's numbers of the options of ``mallopt``."""
LARGEST_RETAINED_BYTES = 32 * 2**20
"""The largest value that glibc allows for ``M_MMAP_THRESHOLD``."""
RETAINED_BYTES = 2**30
LEAST_LET_GO_BYTES = 1 << 20
"""Smaller content may share its pages with other content, or lie in the process's own memory."""


@contextmanager
def arithmetic(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """Sets this process's arithmetic inside the context, for all passes alike.

    On a GPU, torch's own default rounds the factors of convolutions to TF32, and those of matrix
    products not. Inside, both are rounded or neither is, and operations that could add in another
    order each time take a way that does not. An operation that has no such way warns. On the CPU
    the user may have asked torch for products in bfloat16, or this thread for no denormal numbers:
    not inside, as uploads are kept for other runs.

    Args:
        device: where the passes run.
        tf32: whether a GPU rounds the factors of float32 convolutions and products to TF32.
    """
    with ExitStack() as stack:
        stack.enter_context(_precision(torch.backends.mkldnn, "matmul", "conv", "rnn", to="ieee"))
        flushed = not bool(torch.tensor(1e-40, dtype=torch.float32) * 1.0)
        torch.set_flush_denormal(False)
        stack.callback(torch.set_flush_denormal, flushed)
        if device.type == "cuda":
            to = "tf32" if tf32 else "ieee"
            stack.enter_context(_precision(torch.backends.cuda, "matmul", to=to))
            stack.enter_context(_precision(torch.backends.cudnn, "conv", "rnn", to=to))
            stack.enter_context(_repeatable())
        yield


def has_gpu() -> bool:
    """Whether there is a GPU. It is asked once for each choice of GPUs that the environment makes:
    before CUDA has started, torch looks for the driver's library every time."""
    return _asked(torch.cuda.is_available, os.environ.get("CUDA_VISIBLE_DEVICES"))


@lru_cache
def _asked(ask: Callable[[], bool], visible: str | None) -> bool:
    return ask()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, torch computes on so many threads: another number rounds sums differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _precision(backend: Any, *operations: str, to: str) -> Iterator[None]:
    """Sets how the operations of a backend compute with float32."""
    own = [getattr(backend, name) for name in operations]
    before = [operation.fp32_precision for operation in own]
    try:
        for operation in own:
            operation.fp32_precision = to
        yield
    finally:
        for operation, precision in zip(own, before, strict=True):
            operation.fp32_precision = precision


@contextmanager
def _repeatable() -> Iterator[None]:
    """Has the GPU repeat its sums."""
    # cuBLAS does so with a workspace of its own; it reads this at its first product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


class Peak:
    """Bytes at the peak, set at the end of the block; None where they cannot be measured."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measures the code inside: what a GPU's allocator reserved, or the gain of resident memory."""
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.bytes = torch.cuda.max_memory_reserved(device)
        return
    before = _reset_high_water()
    yield peak
    if before is not None:
        peak.bytes = max(0, status_bytes("VmHWM") - before)


@lru_cache
def retain_freed_memory() -> None:
    """Has the C library hold freed memory for later allocations.

    A training step frees and allocates the same megabytes again and again; if they were returned to
    the system, every page would cost a fault, microseconds on a virtual machine, each time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:  # glibc
        mallopt(M_MMAP_THRESHOLD, LARGEST_RETAINED_BYTES)
        mallopt(M_TRIM_THRESHOLD, RETAINED_BYTES)


def return_freed_memory() -> None:
    """Gives what the C library holds back to the system: this process may now wait, and others not.

    Where a cohort of 32 was tried, a process else held what that took for the rest of the run.
    """
    trim = getattr(_libc(), "malloc_trim", None)
    if trim:  # glibc
        trim(0)


def let_go(content: memoryview | np.ndarray) -> None:
    """Takes the pages of mapped content out of this process's memory, if it fills any.

    Content that is mapped from a file or from shared memory counts as the process's memory once it
    was read or written. Who reads it again finds it; memory of the process's own would be lost.
    """
    if content.nbytes < LEAST_LET_GO_BYTES:
        return
    address = np.frombuffer(content, np.uint8).ctypes.data
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (address + content.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


@lru_cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _reset_high_water() -> int | None:
    """Sets the kernel's high-water mark to the present use; returns that in bytes, or None."""
    try:
        (PROC / "self" / "clear_refs").write_text("5")
        return status_bytes("VmRSS")
    except OSError:  # no Linux, or not allowed
        return None


def status_bytes(name: str, process: int | str = "self") -> int:
    """An entry of the kernel's status of a process on Linux, such as ``VmRSS``, in bytes; 0 where
    it has none. Raises `OSError` if the process has ended."""
    for line in (PROC / str(process) / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
