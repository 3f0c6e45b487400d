"""The losses of a training that is counted in steps, as a curve of few points."""

import torch
from torch import Tensor

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
        return [float(f"{part.mean().item():.5g}") for part in parts]
