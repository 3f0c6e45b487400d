"""How a GPU computes in a run: float32 exactly or rounded to TF32, and the same bits each time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def arithmetic(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """Sets the arithmetic of this process's GPU inside the context, for all passes alike.

    Torch's own default rounds the factors of convolutions to TF32, and those of matrix products
    not. Inside, both are rounded or neither is, and operations that could add in another order each
    time take a way that does not. An operation that has no such way warns. On the CPU nothing
    changes.

    Args:
        device: where the passes run.
        tf32: whether the factors of float32 convolutions and products are rounded to TF32.
    """
    if device.type != "cuda":
        yield
        return
    # cuBLAS repeats its sums with a workspace of its own; it reads this at its first product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn: Any = torch.backends.cudnn
    backends: tuple[Any, ...] = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    precisions = [backend.fp32_precision for backend in backends]
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        for backend in backends:
            backend.fp32_precision = "tf32" if tf32 else "ieee"
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        yield
    finally:
        for backend, precision in zip(backends, precisions, strict=True):
            backend.fp32_precision = precision
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
