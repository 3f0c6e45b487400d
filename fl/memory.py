"""Measures the peak memory of a block of code, and makes the C library reuse freed memory."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""glibc's numbers of the options of ``mallopt``."""
LARGEST_RETAINED_BYTES = 32 * 2**20
"""The largest value that glibc allows for ``M_MMAP_THRESHOLD``."""
RETAINED_BYTES = 2**30


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
