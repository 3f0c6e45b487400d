"""How much memory a piece of work needs at its peak."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Bytes at the peak, once the work is done; None where the system does not tell."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measures the work inside: what a GPU's allocator reserved, or resident memory gained."""
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


def _reset_high_water() -> int | None:
    """Sets the kernel's high-water mark to the present use, and returns that in bytes."""
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
