"""What the host draws for a step, sent to a GPU without a wait for what the GPU still has to do."""

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNED_BYTES = 64
"""Each tensor begins at a multiple of them, as those do that torch allocates by themselves."""


def on_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The host's tensors on the device, of any types: by one copy, for which the host does not
    wait. Those for the CPU are not copied.

    They are copied from pinned memory, which torch uses for nothing else before the copy is over.
    """
    if device.type == "cpu":
        return list(tensors)
    sizes = [-(-t.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES for t in tensors]
    flat = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    for tensor, part in zip(tensors, flat.split(sizes), strict=True):
        _as(tensor, part).copy_(tensor)
    parts = flat.to(device, non_blocking=True).split(sizes)
    return [_as(tensor, part) for tensor, part in zip(tensors, parts, strict=True)]


def _as(tensor: Tensor, part: Tensor) -> Tensor:
    """The bytes, or the first of them, as a tensor of the same type and shape as another."""
    return part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
