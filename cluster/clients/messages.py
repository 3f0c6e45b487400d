"""Messages between the driver and clients' processes, through Ray's object store.

What a process has read or written of the object store stays mapped in it, and counts as its memory,
until it lets go of the pages: the messages of all clients would add up.
"""

import ctypes
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray

from fl.federation import Job

FIELDS = ("broadcast", "payload", "remembered")
"""Those of a job that are messages."""
LARGE = 1 << 20
"""Bytes from which a message is put into the object store by itself. Smaller ones travel with their
job, and Ray may hold smaller results in the process's own memory."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Sent:
    """A job without its large messages, and where these lie in the object store, by field."""

    job: Job
    messages: Mapping[str, Any]

    def received(self) -> Job:
        """The job with its messages; called in the client's process."""
        found = {name: ray.get(reference).tobytes() for name, reference in self.messages.items()}
        return replace(self.job, **found)


class Sender:
    """Puts jobs' messages into the object store: a broadcast once, for all clients it is for."""

    def __init__(self) -> None:
        self._last: tuple[bytes, Any] | None = None

    def send(self, job: Job) -> Sent:
        """The job as it travels, with what its client remembers read from the store."""
        ready = job.ready()
        messages: dict[str, Any] = {}
        for name in FIELDS:
            packed = getattr(ready, name)
            if packed is not None and len(packed) >= LARGE:
                messages[name] = self._broadcast(packed) if name == "broadcast" else put(packed)
        without: dict[str, Any] = dict.fromkeys(messages)
        return Sent(replace(ready, **without), messages)

    def _broadcast(self, packed: bytes) -> Any:
        if self._last is None or self._last[0] is not packed:
            self._last = packed, put(packed)
        return self._last[1]


def put(packed: bytes) -> Any:
    """Puts a message into the object store, without a trace in this process's memory."""
    reference = ray.put(np.frombuffer(packed, np.uint8))
    let_go(ray.get(reference))
    return reference


def taken(results: Sequence[memoryview]) -> Iterator[bytes]:
    """Copies of results in the object store, which stay in this process's memory no longer."""
    for result in results:
        copy = bytes(result)
        let_go(result)
        yield copy


def let_go(content: memoryview | np.ndarray) -> None:
    """Takes pages of the object store out of this process's memory, if the content fills any.

    They stay in the object store: who reads them again, finds them.
    """
    if content.nbytes < LARGE:
        return
    address = np.frombuffer(content, np.uint8).ctypes.data
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (address + content.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
