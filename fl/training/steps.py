"""What trainings in steps share: a curve of their losses, and what the host draws for them."""

from collections.abc import Sequence

import torch
from torch import Tensor

# The losses of a training that is counted in steps, as a curve of few points.

POINTS = 50
"""Most points of a curve: it goes into the note of each upload and into the run's events."""


class StepLosses:
    """A client's loss in each step, which stays on its device until the training is over."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []

    def add(self, loss: Tensor) -> None:
        """Adds a step's loss, a scalar."""
        self._losses.append(loss.detach())

    @property
    def last(self) -> float:
        """The last step's."""
        return float(self._losses[-1])

    @property
    def curve(self) -> list[float]:
        """Means over equal parts of the steps, to five digits; a point for each step if there are
        at most :data:`POINTS`. None at all if a loss was not finite."""
        if not self._losses:
            return []
        losses = torch.stack(self._losses).double()
        if not losses.isfinite().all():
            return []
        parts = losses.tensor_split(min(POINTS, len(losses)))
        return [float(f"{mean:.5g}") for mean in torch.stack([p.mean() for p in parts]).tolist()]


# What the host draws for a step, sent to a GPU without a wait for what the GPU still has to do.

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
