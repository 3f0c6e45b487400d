"""The operations of a step that a GPU is to replay: the same each time, and none that waits."""

from collections import defaultdict
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from fl.training.captured import Replayed

WAITING = {"_local_scalar_dense", "nonzero", "_to_copy to a device", "is_nonzero", "equal"}
"""Operations for which the host waits."""


class Operations(TorchDispatchMode):
    """The operations that reach a device, by name; views of a tensor do not."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, device = func.overloadpacket.__name__, (kwargs or {}).get("device")
        if not func.is_view:
            self.names.append(f"{name} to a device" if name == "_to_copy" and device else name)
        return func(*args, **(kwargs or {}))


def of_every_step(patch: pytest.MonkeyPatch) -> dict[Replayed, list[list[str]]]:
    """Of each step that could be replayed: the operations of each time that it is taken."""
    found: dict[Replayed, list[list[str]]] = defaultdict(list)

    def called(step: Replayed) -> None:
        with Operations() as seen:
            step._work()
        found[step].append(seen.names)

    patch.setattr(Replayed, "__call__", called)
    return found


def assert_can_be_captured(times: list[list[str]]) -> None:
    """The first time may be another: optimisers and libraries begin then."""
    _, *later = times
    assert later
    assert all(names == later[0] for names in later)
    assert not WAITING & set(later[0])
