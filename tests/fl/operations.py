"""The operations of a step that a GPU is to replay: the same each time, and none that waits."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from fl.training import captured
from fl.training.captured import Replayed
from kernels import backends, dropout

FREE = {"empty", "empty_like", "new_empty", "_unsafe_view"}
"""Operations that are no views to torch, and launch nothing."""
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


class Unrun:
    """In place of a Triton kernel: counts as one operation, and computes nothing."""

    def __init__(self, name: str, times: list[list[str]]) -> None:
        self._name, self._times = name, times

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self._times[-1].append(self._name)


def launches_of_every_step(patch: pytest.MonkeyPatch) -> list[list[str]]:
    """Of each step that could be replayed what it launches where there are Triton's kernels; what
    comes of it is no result."""
    from kernels import triton_fused  # imports triton

    found: list[list[str]] = []

    def called(step: Replayed, work: Callable[[], None]) -> None:
        with Operations() as seen:
            found.append(seen.names)
            work()
        found[-1] = [name for name in seen.names if name not in FREE]

    for name in [name for name in vars(triton_fused) if name.endswith("_kernel")]:
        patch.setattr(triton_fused, name, Unrun(name, found))
    for module in (backends, dropout):
        patch.setattr(module, "resolve", lambda backend, device: "triton")
    patch.setattr(captured, "can_capture", lambda device: True)
    patch.setattr(Replayed, "__call__", called)
    return found


def of_every_step(patch: pytest.MonkeyPatch) -> dict[Replayed, list[list[str]]]:
    """Of each step that could be replayed: the operations of each time that it is taken."""
    found: dict[Replayed, list[list[str]]] = defaultdict(list)

    def called(step: Replayed, work: Callable[[], None]) -> None:
        with Operations() as seen:
            work()
        found[step].append(seen.names)

    patch.setattr(Replayed, "__call__", called)
    return found


def assert_can_be_captured(times: list[list[str]]) -> None:
    """The first time may be another: optimisers and libraries begin then."""
    _, *later = times
    assert later
    assert all(names == later[0] for names in later)
    waits = WAITING & set(later[0])
    assert not waits, waits
