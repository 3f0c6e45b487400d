"""What a pretended GPU would make the host wait for, and what the host sends to it."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fl.operations import WAITING
from tests.pretended_gpu.tags import device_of, tensors_in
from tests.pretended_gpu.torch_internals import without_calls

READING = WAITING | {"masked_select", "_linalg_check_errors"}
"""Operators of a GPU's tensor that end when the host knows its values."""
GPU = torch.device("cuda")


class Waits:
    """The waits and copies inside the context, by the name of what was called."""

    def __init__(self) -> None:
        self.waits, self.sent = Counter[str](), 0
        self._modes = _Operators(self.waits), _Calls(self)

    def __enter__(self) -> "Waits":
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Calls(TorchFunctionMode):
    """Copies between host and GPU: below a call they are copies of the CPU's."""

    def __init__(self, seen: Waits) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", str(func))
        before = {device_of(t).type for t in tensors_in(args)} or {"cpu"}
        found = func(*args, **kwargs)
        if name in ("tolist", "numpy") and "cuda" in before:
            self._seen.waits[name] += 1
        elif name in ("to", "cuda", "cpu", "tensor", "as_tensor", "copy_"):
            if not isinstance(found, Tensor) or before == {device_of(found).type}:
                return found
            if kwargs.get("non_blocking"):
                self._seen.sent += 1
            else:
                self._seen.waits[name] += 1
        return found


class _Operators(TorchDispatchMode):
    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, tensors = func.overloadpacket.__name__, list(tensors_in([args, kwargs or {}]))
        if any(device_of(t).type == "cuda" for t in tensors) and (
            name in READING or ("index" in name and any(map(_waits_as_index, tensors[1:])))
        ):
            self._waits[name] += 1
        with without_calls():
            return func(*args, **(kwargs or {}))


def _waits_as_index(tensor: Tensor) -> bool:
    """Whether it is copied to the GPU first, or counted there."""
    return tensor.dtype == torch.bool or device_of(tensor).type == "cpu"
