"""Measures the peak memory of a block of code, reuses freed memory, and lets go of mapped pages."""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""glibc's numbers of the options of ``mallopt``."""
LARGEST_RETAINED_BYTES = 32 * 2**20
"""The largest value that glibc allows for ``M_MMAP_THRESHOLD``."""
RETAINED_BYTES = 2**30
LEAST_LET_GO_BYTES = 1 << 20
"""Smaller content may share its pages with other content, or lie in the process's own memory."""


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
        peak.bytes = max(0, _status_bytes("VmHWM") - before)


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
        CLEAR.write_text("5")
        return _status_bytes("VmRSS")
    except OSError:  # no Linux, or not allowed
        return None


def _status_bytes(name: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
