"""Puts the pretence together: the modes, and what is replaced while they are on."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from threading import local
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fl.training import captured
from kernels import backends
from tests.pretended_gpu.calls import Calls
from tests.pretended_gpu.operators import Operators, RoundedOtherwise
from tests.pretended_gpu.queries import MEMORY, Gpus, generator_class
from tests.pretended_gpu.tags import TAG, device_of, device_of_storage
from tests.pretended_gpu.torch_internals import groups_named, wrapped_backward


class PretendedGpus:
    """The process's pretended GPUs. Modes are a thread's own: other threads join by themselves."""

    def __init__(self, count: int, free_bytes: int, operators: type[Operators]) -> None:
        self.gpus, self._operators = Gpus(count, free_bytes), operators
        self._own = local()

    @contextmanager
    def in_this_thread(self) -> Iterator[None]:
        """Inside the context this thread's calls and operators are seen."""
        operators = self._operators()
        self._own.calls = calls = Calls(operators, self.gpus.resolve)
        try:
            with operators, calls:
                yield
        finally:
            del self._own.calls

    def during_backward(self) -> AbstractContextManager[Any]:
        """Has this thread's calls be seen in a backward pass too."""
        calls: Calls | None = getattr(self._own, "calls", None)
        return calls.again() if calls else nullcontext()


@contextmanager
def pretended_gpus(
    count: int = 1, *, free_bytes: int = MEMORY, rounded: bool = False
) -> Iterator[PretendedGpus]:
    """Has this process believe that it has CUDA devices; see :mod:`tests.pretended_gpu`.

    Args:
        count: GPUs, 1 or more.
        free_bytes: what each says that it has free.
        rounded: whether products round otherwise than the CPU's, as a real GPU's do.
    """
    if os.environ.get("ONEFOLD_TEST_DEVICE") == "cuda":
        pytest.skip("pretends a GPU, and a real one is tested")
    made = PretendedGpus(count, free_bytes, RoundedOtherwise if rounded else Operators)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, answer in made.gpus.answers().items():
            patch.setattr(torch.cuda, name, answer)
        patch.setattr(torch, "Generator", generator_class(made.gpus.resolve))
        patch.setattr(torch, "autocast", partial(_autocast, torch.autocast))
        patch.setattr(dist, "init_process_group", partial(_join_group, dist.init_process_group))
        # torch.optim asks it whether its steps are being captured.
        patch.setattr(torch.accelerator, "current_stream", lambda device=None: _Stream())
        # Triton compiles for a GPU, and would read memory that no GPU can.
        patch.setattr(backends, "TRITON_INSTALLED", False)
        patch.setattr(captured, "can_capture", lambda device: False)
        patch.setattr(_Memory, "gpus", made.gpus)
        stack.enter_context(groups_named(device_of))
        stack.enter_context(wrapped_backward(made.during_backward))
        stack.enter_context(made.in_this_thread())
        yield made


class _Stream:
    def is_capturing(self) -> bool:
        return False


def _autocast(real: Any, device_type: str, *args: Any, **kwargs: Any) -> Any:
    """The CPU's autocast, which is what computes."""
    return real("cpu" if device_type == "cuda" else device_type, *args, **kwargs)


def _join_group(real: Any, backend: str, *args: Any, **kwargs: Any) -> None:
    """Gloo in NCCL's place, which takes no tensors in main memory."""
    real("gloo" if backend == "nccl" else backend, *args, **kwargs)


class _Memory:
    """How torch.save and torch.load tell and restore where memory is."""

    gpus: Gpus | None = None

    @staticmethod
    def place(storage: Any) -> str | None:
        """The name of a pretended GPU; None for others to tell."""
        device = device_of_storage(storage)
        return str(device) if device.type == "cuda" else None

    @classmethod
    def restore(cls, storage: Any, location: str) -> Any:
        """The memory, on the pretended GPU of that name; None for others to restore."""
        if cls.gpus is None or not location.startswith("cuda"):
            return None
        setattr(storage, TAG, cls.gpus.resolve(location))
        return storage


# Torch offers no way to take it back; without pretended GPUs it leaves all to torch's own.
torch.serialization.register_package(1, _Memory.place, _Memory.restore)
