"""How a run computes: float32 exactly or rounded to TF32, on how many threads; the same bits."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def arithmetic(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """Sets this process's arithmetic inside the context, for all passes alike.

    On a GPU, torch's own default rounds the factors of convolutions to TF32, and those of matrix
    products not. Inside, both are rounded or neither is, and operations that could add in another
    order each time take a way that does not. An operation that has no such way warns. On the CPU
    the user may have asked torch for products in bfloat16, or this thread for no denormal numbers:
    not inside, as uploads are kept for other runs.

    Args:
        device: where the passes run.
        tf32: whether a GPU rounds the factors of float32 convolutions and products to TF32.
    """
    with ExitStack() as stack:
        stack.enter_context(_precision(torch.backends.mkldnn, "matmul", "conv", "rnn", to="ieee"))
        flushed = not bool(torch.tensor(1e-40, dtype=torch.float32) * 1.0)
        torch.set_flush_denormal(False)
        stack.callback(torch.set_flush_denormal, flushed)
        if device.type == "cuda":
            to = "tf32" if tf32 else "ieee"
            stack.enter_context(_precision(torch.backends.cuda, "matmul", to=to))
            stack.enter_context(_precision(torch.backends.cudnn, "conv", "rnn", to=to))
            stack.enter_context(_repeatable())
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, torch computes on so many threads: another number rounds sums differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _precision(backend: Any, *operations: str, to: str) -> Iterator[None]:
    """Sets how the operations of a backend compute with float32."""
    own = [getattr(backend, name) for name in operations]
    before = [operation.fp32_precision for operation in own]
    try:
        for operation in own:
            operation.fp32_precision = to
        yield
    finally:
        for operation, precision in zip(own, before, strict=True):
            operation.fp32_precision = precision


@contextmanager
def _repeatable() -> Iterator[None]:
    """Has the GPU repeat its sums."""
    # cuBLAS does so with a workspace of its own; it reads this at its first product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
