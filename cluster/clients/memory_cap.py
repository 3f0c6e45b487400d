"""A client's share of memory, enforced: one that goes over fails alone and reports by how much."""

import contextlib
import re
import resource
from collections.abc import Iterator
from dataclasses import replace

import torch

from fl.federation import Request
from fl.process import status_bytes

CUDA_BYTES = 600 * 2**20
"""Memory of a GPU that CUDA itself takes for a process, beside what the allocator hands out: more
than the usual 400 to 550 MiB, to be safe."""

SPARE_BYTES = 32 * 2**20
"""Main memory beyond the share, for the process's other threads. They are Ray's, and one whose
allocation is refused ends the process or leaves it waiting for ever; a client is to fail alone."""

WORDINGS = (
    *("allocate memory", "bad_alloc", "could not create a primitive"),
    "PyObject pointer is null",
)
"""How torch's allocator, C++, oneDNN and safetensors say that there is no more memory."""


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
    share = request.memory_bytes
    if torch.cuda.is_available() and request.gpus:
        total = torch.cuda.get_device_properties(0).total_memory
        fraction = max(0.0, min(1.0, request.gpus) - CUDA_BYTES / total)
        torch.cuda.set_per_process_memory_fraction(fraction)
    with _data_limit(share):
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise OverspentError(f"went over its {request.gpus:g} of the GPU: {error}") from None
        except BaseException as error:  # safetensors' panic is no Exception
            said = str(error)
            full = isinstance(error, MemoryError) or any(words in said for words in WORDINGS)
            if not (share and full):
                raise
            tried = re.search(r"allocate (\d+) bytes", said)
            asked = f"asked for {tried.group(1)} bytes more" if tried else "asked for more"
            raise OverspentError(
                f"went over its {share} bytes of memory: {asked} than was left of them"
            ) from None


@contextlib.contextmanager
def _data_limit(extra_bytes: int) -> Iterator[None]:
    """Limits what RLIMIT_DATA counts, the private memory that the process maps, to so many bytes
    beyond what it has now; 0 sets no limit."""
    if not extra_bytes:
        yield
        return
    most = status_bytes("VmData") + extra_bytes + SPARE_BYTES
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
