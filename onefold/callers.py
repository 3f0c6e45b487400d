"""What the caller has set in torch stays out of a run, and is as it was after it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from fl.seeding import streams_restored


@contextmanager
def plain_torch() -> Iterator[None]:
    """Inside, torch is as a new process has it: gradients, float32, no autocast, on the CPU.

    A run may be called inside ``torch.no_grad()`` or after ``torch.set_default_dtype``; what it
    trains must not depend on that, as its uploads are kept for other runs.
    """
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        stack.callback(torch.set_default_dtype, dtype)
        stack.enter_context(streams_restored())
        yield
