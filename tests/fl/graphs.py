"""CUDA graphs that are pretended on the CPU: a captured step is replayed operation by operation.

As on a GPU, a replay runs no Python: each operation reads and writes the memory that it met when
the step was captured, and numbers are those of that time. So a step that depends on anything that
does not lie in its device's memory comes to other results here too; one for which the host must
wait is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fl.training import captured
from tests.fl.operations import WAITING
from tests.pretended_gpu.tags import tensors_in


class Graph(TorchDispatchMode):
    """Operations and the memory that they met."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in WAITING or (name.startswith("index") and _of_some(args[1])):
            raise RuntimeError(f"{name}: operation not permitted when stream is capturing")
        for tensor in tensors_in([args, kwargs]):
            memory = tensor.untyped_storage()
            if memory.data_ptr() not in self._before:
                self._before[memory.data_ptr()] = memory, memory.clone()
        made = func(*args, **kwargs)
        outputs = list(tensors_in(made))
        for tensor in outputs:  # which was nowhere before
            memory = tensor.untyped_storage()
            self._before.setdefault(memory.data_ptr(), (memory, memory))
        if not func.is_view:
            self._operations.append((func, args, kwargs, outputs))
        return made

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Inside the context operations are captured; in the end none of them was run."""
        try:
            with self:
                yield
        finally:
            for memory, before in self._before.values():
                if memory is not before:
                    memory.copy_(before)
            self._before.clear()

    @torch.no_grad()
    def replay(self) -> None:
        """Runs the operations on that memory."""
        self.replays += 1
        for func, args, kwargs, outputs in self._operations:
            for there, made in zip(outputs, tensors_in(func(*args, **kwargs)), strict=True):
                if made.data_ptr() != there.data_ptr():
                    there.copy_(made)


def _of_some(indices: Any) -> bool:
    """Whether the host must know how many elements a mask has."""
    return any(index.dtype == torch.bool for index in tensors_in(indices))


@contextmanager
def pretended_graphs(worth_it: int = 5) -> Iterator[list[Graph]]:
    """Inside the context steps on the CPU are captured and replayed; gives the graphs.

    ``worth_it``: steps from which on one is.
    """
    made: list[Graph] = []

    def new() -> Graph:
        made.append(Graph())
        return made[-1]

    stream = object()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured, "can_capture", lambda device: True)
        patch.setattr(captured, "WORTH_IT", worth_it)
        patch.setattr(torch.cuda, "CUDAGraph", new)
        patch.setattr(torch.cuda, "graph", lambda graph, **how: graph.capture())
        for name in ("current_stream", "default_stream"):
            patch.setattr(torch.cuda, name, lambda: stream)
        yield made
