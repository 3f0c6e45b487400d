"""The memory cap: inside it nothing is noticed, beyond it the client is told by how much."""

import multiprocessing
import os

import numpy as np
import pytest
import torch

from cluster.clients.memory_cap import OverspentError, capped
from fl.federation import Request

MIB = 2**20


def test_work_within_the_share_is_not_disturbed() -> None:
    with capped(Request(cpus=1, gpus=0, memory_bytes=256 * MIB)):
        assert torch.ones(MIB).sum() == MIB


def test_without_a_request_nothing_is_capped() -> None:
    with capped(Request(cpus=1, gpus=0)):
        assert len(torch.empty(64 * MIB)) == 64 * MIB


def test_going_over_fails_with_the_bytes_and_the_cap_ends() -> None:
    with (
        pytest.raises(OverspentError, match=f"{32 * MIB} bytes of memory: asked for {400 * MIB}"),
        capped(Request(cpus=1, gpus=0, memory_bytes=32 * MIB)),
    ):
        torch.empty(400 * MIB, dtype=torch.uint8)
    assert len(torch.empty(400 * MIB, dtype=torch.uint8)) == 400 * MIB


def test_other_errors_pass_unchanged() -> None:
    with (
        pytest.raises(RuntimeError, match=r"^mine$"),
        capped(Request(cpus=1, gpus=0, memory_bytes=32 * MIB)),
    ):
        raise RuntimeError("mine")


class PanicException(BaseException):
    """As safetensors raises it, written in Rust, where it cannot allocate bytes."""


def test_a_panic_for_want_of_memory_is_told_as_one_and_others_pass() -> None:
    """Its client failed three times with the same share."""
    request = Request(cpus=1, gpus=0, memory_bytes=32 * MIB)
    with pytest.raises(OverspentError, match="bytes of memory"), capped(request):
        raise PanicException("PyObject pointer is null")
    with pytest.raises(PanicException, match="mine"), capped(request):
        raise PanicException("mine")
    with pytest.raises(KeyboardInterrupt), capped(request):
        raise KeyboardInterrupt


def fills_memory() -> None:
    try:
        with capped(Request(cpus=1, gpus=0, memory_bytes=32 * MIB)):
            np.ones(2**28)
    except OverspentError:
        os._exit(7)


@pytest.mark.process
def test_python_and_numpy_allocations_are_capped_too() -> None:
    process = multiprocessing.get_context("fork").Process(target=fills_memory)
    process.start()
    process.join()
    assert process.exitcode == 7
