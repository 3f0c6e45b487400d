"""What becomes of freed memory."""

import ctypes
import subprocess
import sys

import pytest

MIB = 2**20

STEPS = """
import ctypes
import torch
from fl.memory import retain_freed_memory

class Mallinfo2(ctypes.Structure):  # what glibc's allocator tells of itself
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd",
        "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

def step():  # as training does: several tensors of megabytes, all freed at the end
    return [torch.ones(2**20) for _ in range(60)]

retain_freed_memory()
for _ in range(3):
    step()
"""
KEPT = """
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo2
print(libc.mallinfo2().fordblks)  # bytes free, and not given back
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc tells")
def test_freed_memory_is_kept_for_the_next_step() -> None:
    # Asked of the allocator: page faults are counted differently from kernel to kernel. Without
    # retain_freed_memory most runs keep less than 40 MiB here, but not all.
    command = [sys.executable, "-c", STEPS + KEPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 60 * 4 * MIB


RETURNED = """
from pathlib import Path
from fl.memory import return_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

held = [torch.ones(2**18) for _ in range(100)]
above = torch.ones(2**18)  # in use: what is below it stays in the heap when it is freed
full = resident()
del held
before = resident()
return_freed_memory()
print(full - before, before - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc can")
def test_what_is_held_is_returned_when_it_is_asked_for() -> None:
    command = [sys.executable, "-c", STEPS + RETURNED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, returned = map(int, done.stdout.split())
    assert kept < 10 * MIB
    assert returned > 60 * MIB
