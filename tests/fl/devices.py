"""Work done twice, on the CPU and on a GPU, where it must come to the same.

Where nothing else is said the GPU is pretended, and the same are the same bits. The variable
ONEFOLD_TEST_DEVICE names another: ``cuda`` is this machine's real GPU, and ``rounded`` a pretended
one whose products round otherwise than the CPU's, as a real one's do. There the same is within a
tolerance, and dropout takes its masks from the CPU's stream, since CUDA's draws other numbers.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.process import arithmetic
from fl.training import captured, slots, stacked
from tests.fl.toy import CPU
from tests.pretended_gpu import PretendedGpus, pretended_gpus

Result = TypeVar("Result")

DEVICE = os.environ.get("ONEFOLD_TEST_DEVICE", "pretended")
assert DEVICE in ("pretended", "rounded", "cuda"), f"ONEFOLD_TEST_DEVICE={DEVICE}"
EXACT = DEVICE == "pretended"
TOLERANCE = 1e-4
"""Of a tensor's norm, and of a number."""


class Where(NamedTuple):
    """Where to work."""

    device: torch.device
    gpus: PretendedGpus | None = None
    """The pretended GPUs, for work in other threads; None on the CPU and on a real GPU."""

    @contextmanager
    def rank(self, number: int) -> Iterator[torch.device]:
        """The device of a rank in a thread of its own: a GPU for each, as far as there are any."""
        if self.device.type == "cpu":
            yield self.device
        elif self.gpus is None:
            own = torch.device("cuda", number % torch.cuda.device_count())
            torch.cuda.set_device(own)
            yield own
        else:
            with self.gpus.in_this_thread():
                torch.cuda.set_device(number)
                yield torch.device("cuda", number)


def on_both(
    work: Callable[[Where], Result], *, count: int = 1, free_bytes: int | None = None
) -> tuple[Result, Result]:
    """What the work comes to on the CPU and on a GPU.

    Args:
        work: is told where to work.
        count: pretended GPUs; real ones are as many as there are.
        free_bytes: memory that a GPU says it has free. Default: a pretended one 8 GB.
    """
    # Without a number, as the code names it that looks for GPUs.
    gpu = torch.device("cuda")
    with pytest.MonkeyPatch.context() as patch:
        # Products of a library of their own, for CPUs alone: they round otherwise than torch's.
        patch.setattr(stacked, "available", lambda x: False)
        # Nor in slots, which sum in another order, or by replayed steps, whose masks are others:
        # these have tests of their own.
        patch.setattr(slots, "suits", lambda device: False)
        patch.setattr(captured, "planned", lambda recipe: None)
        if not EXACT:
            patch.setattr(F, "dropout", dropout_by_the_cpu)
        with pytest.MonkeyPatch.context() as hidden:
            hidden.setattr(torch.cuda, "is_available", lambda: False)
            on_cpu = work(Where(CPU))
        memory = {} if free_bytes is None else {"free_bytes": free_bytes}
        if DEVICE != "cuda":
            with pretended_gpus(count, rounded=not EXACT, **memory) as gpus:
                return on_cpu, work(Where(gpu, gpus))
        if free_bytes is not None:
            patch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free_bytes, 2**33))
        with arithmetic(gpu, tf32=False):
            return on_cpu, work(Where(gpu))


def dropout_by_the_cpu(
    x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Torch's dropout, with a mask from the CPU's global stream wherever ``x`` is."""
    if not training or p == 0:
        return x
    return x * (torch.rand(x.shape) >= p).to(x.device) / (1 - p)


def assert_same(one: Any, other: Any, tolerance: float = TOLERANCE, path: str = "") -> None:
    """Raises AssertionError, with the path to it, if a bit of two results differs.

    Beside a GPU that rounds otherwise floats may differ by the tolerance.
    """
    assert type(one) is type(other), path
    if isinstance(one, Tensor):
        assert_same_tensor(one.detach(), other.detach(), tolerance, path)
    elif isinstance(one, nn.Module):
        assert_same(dict(one.state_dict()), dict(other.state_dict()), tolerance, path)
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for name in one:
            assert_same(one[name], other[name], tolerance, f"{path}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for number, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, tolerance, f"{path}[{number}]")
    elif is_dataclass(one):
        for field in fields(one):
            pair = getattr(one, field.name), getattr(other, field.name)
            assert_same(*pair, tolerance, f"{path}.{field.name}")
    elif isinstance(one, float) and not EXACT:
        assert other == pytest.approx(one, rel=tolerance, abs=tolerance), path
    else:
        assert one == other, path


def assert_same_tensor(one: Tensor, other: Tensor, tolerance: float, path: str) -> None:
    """See :func:`assert_same`; NaN is the same as NaN.

    The tolerance is of the difference's norm: Adam divides a gradient that is nearly nothing by
    itself, so that single weights may move by a whole step for a rounding.
    """
    other = other.to(one.device)
    assert (one.shape, one.dtype) == (other.shape, other.dtype), path
    if EXACT or not one.is_floating_point():
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7)), f"{path} differs"
        return
    assert torch.equal(one.isnan(), other.isnan()), path
    one, other = one.double().nan_to_num(0), other.double().nan_to_num(0)
    apart, norm = (one - other).norm().item(), one.norm().item()
    assert apart <= tolerance * norm + 1e-9, f"{path} differs by {apart / norm:.2g} of its norm"
