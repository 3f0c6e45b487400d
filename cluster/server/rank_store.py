"""Where ranks on several nodes find each other: values that an actor of Ray keeps for the group.

It is reached over Ray's own connections, which answer only who has the cluster's token.
"""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import ray
import torch.distributed as dist
from ray.exceptions import RayError

from fl.fusion.group import PeerLostError

WAIT_S = 300.0
"""How long to wait for a key where no other time is said; torch's own default."""
LOOK_S = 0.01
"""How often to look whether it is there."""


class Keeper:
    """The values, in a process of their own."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Sets a value."""
        self._values[key] = value

    def get(self, key: str) -> bytes:
        """A value that is there."""
        return self._values[key]

    def add(self, key: str, number: int) -> int:
        """Adds to a number, which begins at 0; returns the sum."""
        total = int(self._values.get(key, b"0")) + number
        self._values[key] = str(total).encode()
        return total

    def check(self, keys: list[str]) -> bool:
        """Whether all of these are set."""
        return all(key in self._values for key in keys)


class RankStore(dist.Store):
    """Torch's store of a group: what a rank asks, the :class:`Keeper` answers."""

    def __init__(self, keeper: Any) -> None:
        """``keeper``: the handle of its actor."""
        super().__init__()
        self._keeper = keeper

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a value."""
        _ask(self._keeper.set, key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """A value, once somebody has set it."""
        self.wait([key])
        return _ask(self._keeper.get, key)

    def add(self, key: str, number: int) -> int:
        """Adds to a number, which begins at 0; returns the sum."""
        return _ask(self._keeper.add, key, number)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of these are set."""
        return _ask(self._keeper.check, list(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all of these are set.

        Raises:
            PeerLostError: they were not within the timeout.
        """
        seconds = timeout.total_seconds() if timeout else WAIT_S
        deadline = time.monotonic() + seconds
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise PeerLostError(f"no rank has set {', '.join(keys)} within {seconds:g} s")
            time.sleep(LOOK_S)


def _ask(method: Any, *arguments: Any) -> Any:
    try:
        return ray.get(method.remote(*arguments))
    except RayError:
        raise PeerLostError("the process that keeps the ranks' store is gone") from None
