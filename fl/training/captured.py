"""A step that a GPU replays: all its kernels by one call of the host, which waits for none.

The step must do the same every time: what changes from one to the next it reads on the device, at a
counter that it moves itself.
"""

import logging
from collections.abc import Callable

import torch

WARM_UP = 2
"""Steps before the captured one: in the first, libraries allocate what they keep."""

WORTH_IT = 32
"""Steps from which on capturing one saves more than it takes."""

log = logging.getLogger(__name__)


def can_capture(device: torch.device) -> bool:
    """Whether steps are captured there."""
    return device.type == "cuda"


class Replayed:
    """A function without arguments, called as it is or, on a GPU after some calls, by replaying
    what it did there once.

    Args:
        work: the function.
        device: where it works.
        calls: how often it will be called, about.
    """

    def __init__(self, work: Callable[[], None], device: torch.device, calls: int) -> None:
        self._work = work
        self._eager = WARM_UP if can_capture(device) and calls >= WORTH_IT else -1
        """Calls before it is captured; below 0 it never is."""
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self._eager == 0 and self._graph is None:
            self._capture()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._work()
            self._eager -= 1

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):  # which runs nothing
                self._work()
            self._graph = graph
        except RuntimeError as error:  # the step asks the device something, or copies from the host
            log.warning("a training step cannot be captured, and runs slower: %s", error)
            self._eager = -1
