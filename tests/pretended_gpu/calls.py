"""What is called by a device's name: ``tensor.to("cuda")``, ``torch.zeros(2, device="cuda")``.

Below a call there are only operators on the CPU. So it is here that devices are read from
arguments, and told as a tensor's ``device``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tests.pretended_gpu.operators import Operators
from tests.pretended_gpu.tags import CPU, device_of, moved, tag, tensors_in
from tests.pretended_gpu.torch_internals import TorchFunctionMode

Resolve = Callable[[Any], torch.device]
"""Function of whatever names a device: the device, with its number."""


class Calls(TorchFunctionMode):
    """Answers calls that name or ask for a device; all others go on to the operators."""

    def __init__(self, operators: Operators, resolve: Resolve) -> None:
        super().__init__()
        self._operators, self._resolve = operators, resolve
        self._is_off = False
        self._answers = {
            Tensor.device.__get__: device_of,
            Tensor.is_cuda.__get__: lambda tensor: device_of(tensor).type == "cuda",
            Tensor.is_cpu.__get__: lambda tensor: device_of(tensor).type == "cpu",
            Tensor.get_device: _index,
            Tensor.to: self._to,
            Tensor.cuda: self._cuda,
            Tensor.cpu: lambda tensor, **how: self._to(tensor, CPU, **how),
            Tensor.numpy: _numpy,
            Tensor.__array__: _array,
            Tensor.pin_memory: _pinned,
            Tensor.new_tensor: self._new_tensor,
            Tensor.__deepcopy__: _deepcopy,
            Tensor.grad.__set__: _set_grad,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = self._answers.get(func)
        if answer is None and getattr(func, "__name__", "") == "__get__":
            return func(*args)  # a shape, a type: many are asked for, and none makes anything
        kwargs = dict(kwargs or {})
        named = kwargs.get("device")
        device = None if named is None else self._resolve(named)
        if answer is None and device and device.type == "cuda":
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)  # without CUDA nothing can be pinned
        here = device or _first_gpu((args, kwargs))
        _check_generator(kwargs.get("generator"), here)
        # Calls within the answer are not seen, and what they make is here.
        before = self._operators.ambient, self._is_off
        self._operators.ambient, self._is_off = here, True
        try:
            if answer:
                return answer(*args, **kwargs)
            result = func(*args, **kwargs)
        finally:
            self._operators.ambient, self._is_off = before
        return result if device is None else _on(device, result)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside the context calls are seen though one is being answered.

        A backward pass calls what its author wrote in Python, from within one call of torch's.
        """
        if not self._is_off:
            yield
            return
        self._is_off = False
        try:
            with self:
                yield
        finally:
            self._is_off = True

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """``tensor.to``: of a type, of a device and perhaps a type, or like another tensor."""
        first = args[0] if args else kwargs.get("other")
        if isinstance(first, Tensor):
            return moved(tensor.to(*args, **kwargs), device_of(first))
        named = kwargs.pop("device", None)
        if args and not isinstance(first, torch.dtype):
            named, args = first, args[1:]
        device = device_of(tensor) if named is None else self._resolve(named)
        if device.type not in ("cpu", "cuda"):
            return tensor.to(device, *args, **kwargs)
        return moved(tensor.to(CPU, *args, **kwargs), device)

    def _cuda(self, tensor: Tensor, device: Any = None, **kwargs: Any) -> Tensor:
        return self._to(tensor, "cuda" if device is None else device, **kwargs)

    def _new_tensor(self, tensor: Tensor, data: Any, **kwargs: Any) -> Tensor:
        named = kwargs.pop("device", None)
        device = device_of(tensor) if named is None else self._resolve(named)
        return moved(tensor.new_tensor(data, **kwargs), device)


def _on(device: torch.device, result: Any) -> Any:
    """A call's result on the device that the call named."""
    return moved(result, device) if isinstance(result, Tensor) and device.type != "meta" else result


def _first_gpu(values: Any) -> torch.device:
    """The device of the first tensor that is on a GPU, else the CPU."""
    devices = map(device_of, tensors_in(values))
    return next((device for device in devices if device.type == "cuda"), CPU)


def _check_generator(generator: torch.Generator | None, device: torch.device) -> None:
    if generator is not None and generator.device.type != device.type:
        raise RuntimeError(
            f"Expected a '{device.type}' device type for generator but found "
            f"'{generator.device.type}'"
        )


def _index(tensor: Tensor) -> int:
    index = device_of(tensor).index
    return -1 if index is None else index


def _numpy(tensor: Tensor, *, force: bool = False) -> Any:
    if force:
        return moved(tensor.detach(), CPU).numpy(force=True)
    _refuse_array(tensor)
    return tensor.numpy()


def _array(tensor: Tensor, dtype: Any = None) -> Any:
    _refuse_array(tensor)
    return tensor.__array__(dtype)


def _refuse_array(tensor: Tensor) -> None:
    if device_of(tensor) != CPU:
        raise TypeError(
            f"can't convert {device_of(tensor)} device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        )


def _pinned(tensor: Tensor) -> Tensor:
    if device_of(tensor) != CPU:
        raise RuntimeError(
            "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"
        )
    return tensor.clone()


def _deepcopy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    return tag(tensor.__deepcopy__(memo), device_of(tensor))  # its memory is copied, not its tag


def _set_grad(tensor: Tensor, gradient: Tensor | None) -> None:
    if gradient is not None and device_of(gradient) != device_of(tensor):
        raise RuntimeError(
            "assigned grad has data located on a different device: "
            f"{device_of(gradient)}, for a tensor on {device_of(tensor)}"
        )
    tensor.grad = gradient
