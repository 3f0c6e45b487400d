"""What each of torch's operators may mix, and where its results are."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.pretended_gpu.tags import CPU, device_of, tag, tensors_in
from tests.pretended_gpu.torch_internals import (
    COPIES,
    INDEXED,
    OperatorMode,
    is_scalar_friendly,
    without_calls,
)

ATEN = torch.ops.aten
PRODUCTS = {
    *(ATEN.mm, ATEN.addmm, ATEN.bmm, ATEN.baddbmm, ATEN.mv, ATEN.dot),
    *(ATEN.convolution, ATEN.convolution_backward),
}


class Operators(OperatorMode):
    """Refuses operators that mix devices, and tags the results of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.ambient = CPU
        """Where operators without a tensor among their arguments make theirs."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with without_calls():
            device = place(func, args, kwargs) or self.ambient
            results = self._call(func, device, args, kwargs)
            if device.type == "cuda":
                for tensor in tensors_in(results):
                    if device_of(tensor) == CPU:
                        tag(tensor, device)
        return results

    def _call(
        self, func: Any, device: torch.device, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        return func(*args, **kwargs)


class RoundedOtherwise(Operators):
    """Computes a GPU's float32 products in float64: their last bits are not the CPU's."""

    def _call(
        self, func: Any, device: torch.device, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if device.type != "cuda" or func.overloadpacket not in PRODUCTS:
            return func(*args, **kwargs)
        if any(t.dtype != torch.float32 for t in tensors_in(args)):
            return func(*args, **kwargs)
        out = kwargs.pop("out", None)
        wide = (arg.double() if isinstance(arg, Tensor) else arg for arg in args)
        results = func.overloadpacket(*wide, **kwargs)
        if isinstance(results, tuple):
            return tuple(r if r is None else r.float() for r in results)
        return results.float() if out is None else out.copy_(results)


def place(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.device | None:
    """Where the operator works; None if it is given no tensor.

    Raises:
        RuntimeError: CUDA would refuse to mix these tensors.
    """
    if func in COPIES:
        return device_of(next(tensors_in(args)))
    if func in INDEXED:
        check_indices(args[0], args[1])
        args = (args[0], *args[2:])
    given = [*tensors_in(args), *tensors_in(kwargs)]
    devices = dict.fromkeys(map(device_of, given))
    if len(devices) > 1 and is_scalar_friendly(func):
        changed = args[0] if func.overloadpacket.__name__.endswith("_") else None
        devices = dict.fromkeys(device_of(t) for t in given if t is changed or not is_number(t))
    if len(devices) > 1:
        one, other, *_ = devices
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{one} and {other}! (when checking arguments of {func})"
        )
    device = next(iter(devices), None)
    if func.namespace == "c10d" and device == CPU:
        raise RuntimeError(f"No backend type associated with device type cpu, in {func}")
    return device


def is_number(tensor: Tensor) -> bool:
    """Whether CUDA may take the tensor for a number, wherever the others are."""
    return tensor.dim() == 0 and device_of(tensor) == CPU


def check_indices(indexed: Tensor, indices: Sequence[Tensor | None]) -> None:
    """Raises RuntimeError if an index is neither on the CPU nor with what it indexes."""
    home = device_of(indexed)
    for index in indices:
        if index is not None and device_of(index) not in (CPU, home):
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({home}), got {device_of(index)}"
            )
