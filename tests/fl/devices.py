"""Work done twice, on the CPU and on a pretended GPU, where it must come to the same bits."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
from torch import Tensor, nn

from fl.training import products
from tests.fl.toy import CPU
from tests.pretended_gpu import PretendedGpus, pretended_gpus

Result = TypeVar("Result")


class Where(NamedTuple):
    """Where to work."""

    device: torch.device
    gpus: PretendedGpus | None = None
    """The pretended GPUs, for work in other threads; None on the CPU."""


def on_both(work: Callable[[Where], Result], **pretence: Any) -> tuple[Result, Result]:
    """What the work comes to on the CPU, and on pretended GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        # Products of a library of their own, for CPUs alone: they round otherwise than torch's.
        patch.setattr(products, "available", lambda x: False)
        on_cpu = work(Where(CPU))
        with pretended_gpus(**pretence) as gpus:
            # Without a number, as the code names it that looks for GPUs.
            on_gpu = work(Where(torch.device("cuda"), gpus))
    return on_cpu, on_gpu


def assert_same(one: Any, other: Any, path: str = "") -> None:
    """Raises AssertionError, with the path to it, if a bit of two results differs."""
    assert type(one) is type(other), path
    if isinstance(one, Tensor):
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7)), f"{path} differs"
    elif isinstance(one, nn.Module):
        assert_same(dict(one.state_dict()), dict(other.state_dict()), path)
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for name in one:
            assert_same(one[name], other[name], f"{path}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for number, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{path}[{number}]")
    elif is_dataclass(one):
        for field in fields(one):
            pair = getattr(one, field.name), getattr(other, field.name)
            assert_same(*pair, f"{path}.{field.name}")
    else:
        assert one == other, path
