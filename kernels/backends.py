"""Chooses the implementation of the distance filter: reference, torch or Triton."""

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.batched import TorchGroups
from kernels.groups import Groups, interpreted

NAMES = ("auto", "reference", "torch", "triton")
# Looked up once and without importing it: CPU builds of torch and macOS come without Triton.
TRITON_INSTALLED = importlib.util.find_spec("triton") is not None


def resolve(backend: str, device: torch.device) -> str:
    """The implementation to run: "auto" becomes triton on CUDA where installed, else torch.

    Raises:
        ValueError: an unknown name, or triton where it cannot run.
    """
    if backend not in NAMES:
        raise ValueError(f"backend must be one of {', '.join(NAMES)}, got {backend!r}")
    if backend == "auto":
        return "triton" if device.type == "cuda" and TRITON_INSTALLED else "torch"
    if backend == "triton":
        if not TRITON_INSTALLED:
            raise ValueError("the triton backend needs the package triton, which is not installed")
        if device.type != "cuda" and not interpreted():
            raise ValueError(
                f"the triton backend needs CUDA tensors, got {device}; "
                "TRITON_INTERPRET=1 runs it on the CPU"
            )
    return backend


def fuses(device: torch.device) -> bool:
    """Whether a training step's pieces are computed there by kernels of this package."""
    return resolve("auto", device) == "triton"


def grouping(backend: str) -> Callable[[Tensor, Tensor, int], Groups]:
    """The `Groups` class of a resolved backend, torch or triton, for (N, F) samples."""
    if backend == "torch":
        return TorchGroups
    from kernels.triton_groups import TritonGroups  # imports triton

    return TritonGroups
