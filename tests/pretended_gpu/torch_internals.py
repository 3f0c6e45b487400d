"""Internals of torch that the pretence stands on, which may change with any release.

Torch offers no device of one's own that has autograd and needs no compiled code. So the pretence
tags memory, watches operators and calls by torch's two kinds of modes, and replaces what asks
CUDA itself.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch.cuda._utils import _get_device_index
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["OperatorMode", "TorchFunctionMode"]

TESTED_WITH = "2.14.1"
"""The version that tests/test_pretended_gpu.py last checked this file with."""

device_index: Callable[..., int] = _get_device_index
"""Number of a CUDA device; of ``torch.device("cuda")`` the current one, if that is ``optional``."""

without_calls: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunction
"""Inside the context no function mode sees what is called."""


class OperatorMode(TorchDispatchMode):
    """A mode that sees each operator; it may not be compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # there is nothing to skip, and torch._dynamo takes seconds to import


START = "_lazy_init"
"""The function of ``torch.cuda`` that torch calls before it uses a GPU."""
EXCHANGE = ("_exchange_device", "_maybe_exchange_device")
"""Those by which ``torch.cuda.device`` makes another GPU the current one."""

aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._foreach_copy_.default}
"""Operators that write from any device to any other."""
INDEXED = {
    *(aten.index.Tensor, aten.index_put.default, aten.index_put_.default),
    *(aten._index_put_impl_.default, aten._unsafe_index.Tensor),
}
"""Operators whose indices, the second argument, may be on the CPU whatever they index."""
SCALAR_FRIENDLY = {
    *(aten.masked_fill.Tensor, aten.masked_fill_.Tensor, aten.fill.Tensor, aten.fill_.Tensor),
    *INDEXED,
}


@cache
def is_scalar_friendly(operator: Any) -> bool:
    """Whether CUDA takes a CPU tensor without dimensions for a number in this operator."""
    return torch.Tag.pointwise in operator.tags or operator in SCALAR_FRIENDLY


@contextmanager
def wrapped_backward(around: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Inside the context every backward pass runs within ``around()``."""
    engine = torch.autograd._engine_run_backward

    def run(*args: Any, **kwargs: Any) -> Any:
        with around():
            return engine(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "_engine_run_backward", run)
        yield


@contextmanager
def groups_named(device_of: Callable[[Any], torch.device]) -> Iterator[None]:
    """Inside the context clipping and optimisers take tensors to be where ``device_of`` says.

    Each group of tensors that they handle together must be on one device.
    """
    group = torch._C._group_tensors_by_device_and_dtype

    def named(lists: Any, with_indices: bool = False) -> Any:
        found = group(lists, with_indices)
        return {(device_of(v[0][0][0]), dtype): v for (_, dtype), v in found.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._C, "_group_tensors_by_device_and_dtype", named)
        yield
