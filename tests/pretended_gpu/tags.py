"""Which device a tensor pretends to be on: a tag on the memory that it lies in.

All tensors over one piece of memory (views, ``.data``, a parameter and what it was made of) so have
one device, as they have on a GPU.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.pretended_gpu.torch_internals import without_calls

CPU = torch.device("cpu")
TAG = "pretended_device"


def device_of(tensor: Tensor) -> torch.device:
    """The device that the tensor pretends to be on; its own where it does not pretend."""
    with without_calls():
        if tensor.device != CPU:  # the meta device, whose tensors have no memory
            return tensor.device
        return device_of_storage(tensor.untyped_storage())


def device_of_storage(storage: torch.UntypedStorage) -> torch.device:
    """The device that a piece of memory pretends to be on."""
    device: torch.device = getattr(storage, TAG, CPU)
    return device


def tag(tensor: Tensor, device: torch.device) -> Tensor:
    """Has the tensor, and all others over its memory, pretend to be on ``device``."""
    with without_calls():
        setattr(tensor.untyped_storage(), TAG, device)
    return tensor


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor itself if it is on ``device``, else a copy there; gradients are moved back."""
    if device_of(tensor) == device:
        return tensor
    copy: Tensor = _Move.apply(tensor, device)
    return copy


class _Move(torch.autograd.Function):
    """A copy on another device."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, device: torch.device) -> Tensor:
        ctx.source = device_of(tensor)
        return tag(tensor.clone(), device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return moved(gradient, ctx.source), None


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results, in lists, tuples and dicts too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
