"""A client's share of memory, enforced: one that goes over fails alone and reports by how much."""

import contextlib
import re
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from fl.federation import Request

CUDA_BYTES = 600 * 2**20
"""Memory of a GPU that CUDA itself takes for a process, beside what the allocator hands out: more
than the usual 400 to 550 MiB, to be safe."""

SPARE_BYTES = 32 * 2**20
"""Main memory beyond the share, for the process's other threads. They are Ray's, and one whose
allocation is refused ends the process or leaves it waiting for ever; a client is to fail alone."""


class OverspentError(RuntimeError):
    """A client needed more memory than its share."""


def larger(request: Request) -> Request:
    """Twice the share, for a client that needed more; of a GPU no more than the whole."""
    return replace(request, gpus=min(1.0, 2 * request.gpus), memory_bytes=2 * request.memory_bytes)


@contextlib.contextmanager
def capped(request: Request) -> Iterator[None]:
    """Caps this process's allocator at the client's share while the client trains.

    On a GPU the caching allocator gets its fraction of the card; main memory is capped at
    ``memory_bytes``, where the request names it, and ``SPARE_BYTES`` beyond what the process holds
    already.

    Raises:
        OverspentError: the client needed more; the message has the number of bytes.
    """
    if torch.cuda.is_available() and request.gpus:
        torch.cuda.set_per_process_memory_fraction(_allocator_fraction(request.gpus))
    with _data_limit(request.memory_bytes):
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise OverspentError(f"went over its {request.gpus:g} of the GPU: {error}") from None
        except (RuntimeError, MemoryError) as error:
            if not request.memory_bytes or not _is_out_of_memory(error):
                raise
            raise OverspentError(_overspent(request.memory_bytes, error)) from None


def _allocator_fraction(gpus: float) -> float:
    """The fraction of a GPU that a share leaves to the allocator, after CUDA's own memory."""
    total = torch.cuda.get_device_properties(0).total_memory
    return max(0.0, min(1.0, gpus) - CUDA_BYTES / total)


@contextlib.contextmanager
def _data_limit(extra_bytes: int) -> Iterator[None]:
    if not extra_bytes:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + extra_bytes + SPARE_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _data_bytes() -> int:
    """Private memory this process has mapped so far: what RLIMIT_DATA counts."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmData:\s+(\d+) kB", status)
    return int(found.group(1)) * 1024 if found else 0


def _is_out_of_memory(error: Exception) -> bool:
    # The wording of torch's allocator, of C++ and of oneDNN.
    wordings = ("allocate memory", "bad_alloc", "could not create a primitive")
    return isinstance(error, MemoryError) or any(words in str(error) for words in wordings)


def _overspent(share_bytes: int, error: Exception) -> str:
    tried = re.search(r"allocate (\d+) bytes", str(error))
    asked = f"asked for {tried.group(1)} bytes more" if tried else "asked for more"
    return f"went over its {share_bytes} bytes of memory: {asked} than was left of them"
