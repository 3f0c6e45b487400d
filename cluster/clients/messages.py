"""Messages from the driver to clients' processes, through Ray's object store.

What a process has read or written of the object store stays mapped in it, and counts as its memory,
until it lets go of the pages: the messages of all clients would add up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray

from fl.exchange import Message
from fl.federation import Job
from fl.memory import let_go

LARGE = 1 << 20
"""Bytes from which a message is put into the object store by itself. Smaller ones travel with their
job."""
References = Sequence[Any]
"""Where the pieces of a message lie in the object store, in order."""


@dataclass(frozen=True)
class Sent:
    """A job without its large messages, and where these lie in the object store, by field."""

    job: Job
    messages: Mapping[str, References]

    def received(self) -> Job:
        """The job with its messages; called in the client's process."""
        found: dict[str, Any] = {
            name: b"".join(ray.get(list(pieces))) for name, pieces in self.messages.items()
        }
        return replace(self.job, **found)


class Sender:
    """Puts jobs' messages into the object store: a broadcast once, for all clients it is for."""

    def __init__(self) -> None:
        self._last: tuple[bytes, References] | None = None

    def send(self, job: Job) -> Sent:
        """The job as it travels, with what its client remembers read from the store."""
        small: dict[str, Any] = dict.fromkeys(("broadcast", "payload", "remembered"))
        large: dict[str, References] = {}
        for name, message in _messages(job).items():
            if len(message.content) < LARGE:
                small[name] = bytes(message)
            elif name == "broadcast":
                large[name] = self._broadcast(job.broadcast or b"")
            else:
                large[name] = put(message)
        return Sent(replace(job, memory=None, **small), large)

    def _broadcast(self, packed: bytes) -> References:
        if self._last is None or self._last[0] is not packed:
            self._last = packed, put(Message(packed))
        return self._last[1]


def _messages(job: Job) -> dict[str, Message]:
    found = {"broadcast": job.broadcast, "payload": job.payload, "remembered": job.remembered}
    messages = {name: Message(packed) for name, packed in found.items() if packed}
    if job.memory is not None:
        messages["remembered"] = job.memory.read()
    return messages


def put(message: Message) -> References:
    """Puts a message into the object store, without a trace in this process's memory."""
    references = []
    for piece in message.pieces():
        references.append(ray.put(np.frombuffer(piece, np.uint8)))
        let_go(ray.get(references[-1]))
    return references
