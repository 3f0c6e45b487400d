"""Randomness by name: every stream depends on (seed, purpose, client), never on the order of work.

A client's training draws the same numbers whether it runs first or last, alone or beside others,
in this process or on another node.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fl.process import has_gpu


def seed_for(seed: int, purpose: str, client: int | None = None) -> int:
    """A 63-bit seed for one purpose, and one client where it is given."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{'' if client is None else client}".encode())
    return int.from_bytes(digest.digest()[:8], "little") >> 1


def torch_generator(seed: int, purpose: str, client: int | None = None) -> torch.Generator:
    """A generator with its own stream, on the CPU, so that numbers do not depend on the device."""
    return torch.Generator().manual_seed(seed_for(seed, purpose, client))


def numpy_generator(seed: int, purpose: str, client: int | None = None) -> np.random.Generator:
    """A NumPy generator with its own stream."""
    return np.random.default_rng(seed_for(seed, purpose, client))


def in_round(purpose: str, number: int) -> str:
    """The purpose's name in a round: another in each. A one-shot method has the first alone."""
    return purpose if number == 1 else f"{purpose}/round {number}"


@contextmanager
def streams_restored() -> Iterator[None]:
    """Restores the global streams after: Python's, NumPy's, torch's on the CPU, and on the current
    GPU if CUDA is in use.

    Torch by itself would start CUDA on all GPUs, in processes too that use none.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    others = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(others[0])
            np.random.set_state(others[1])


@contextmanager
def all_streams(seed: int) -> Iterator[None]:
    """Seeds the global streams, on which code of users may draw, and restores them after."""
    with streams_restored():
        seed_streams(seed)
        yield


def seed_streams(seed: int) -> None:
    """Seeds the global streams: torch's, NumPy's and Python's."""
    if has_gpu():
        torch.manual_seed(seed)
    else:  # which would note who called it, for devices that are not there: 0.2 ms
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def stream_states() -> bytes:
    """How far the global streams have been drawn from."""
    kind, keys, *place = np.random.get_state()
    states = [torch.get_rng_state().numpy().tobytes(), np.asarray(keys).tobytes()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state().numpy().tobytes())
    return b"".join(states) + f"{kind} {place} {random.getstate()}".encode()


@contextmanager
def seeded(seed: int, purpose: str, client: int | None = None) -> Iterator[None]:
    """The same by name: for a model's first weights, its dropout, and what users' code draws."""
    with all_streams(seed_for(seed, purpose, client)):
        yield


class OwnStream:
    """A stream that is torch's global one on the CPU inside the context, and continues there."""

    def __init__(self, seed: int, purpose: str, client: int | None = None) -> None:
        self._own = torch_generator(seed, purpose, client).get_state()

    def __enter__(self) -> None:
        self._others = torch.get_rng_state()
        torch.set_rng_state(self._own)

    def __exit__(self, *error: object) -> None:
        self._own = torch.get_rng_state()
        torch.set_rng_state(self._others)
