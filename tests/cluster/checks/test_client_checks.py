"""What is made of clients' outcomes; tests/cluster/test_doctor.py has clients in processes."""

from collections.abc import Generator, Sequence
from typing import Any

import pytest
import torch

from cluster.checks import client_checks
from cluster.checks.check import CheckFailed
from cluster.checks.client_checks import (
    SHARE_BYTES,
    ClientPool,
    distance_filter,
    memory_cap,
    shared_device,
)
from cluster.checks.federation import images
from cluster.scheduling.capacity import Bundle
from fl.client_note import ClientNote
from fl.errors import ClientFailed
from fl.events import Events
from fl.executor import InProcess
from fl.federation import Job
from fl.packed import Packed

CORES = (Bundle(name="0", cpus=2, gpus=0, memory_bytes=2**30),)
CARDS = (
    Bundle(name="0", cpus=8, gpus=2, memory_bytes=2**30),
    Bundle(name="1", cpus=9, gpus=0, memory_bytes=2**30),
)


def in_this_process() -> ClientPool:
    """Clients without a process, and so without a cap, of their own."""
    return ClientPool(executor=InProcess(images()), bundles=CORES)


class Scripted:
    """An executor whose clients ran where a test says, or failed so."""

    def __init__(self, devices: Sequence[str], failures: dict[int, Exception] | None = None):
        self.devices, self.failures = devices, failures or {}
        self.jobs: list[Job] = []

    def run(
        self, jobs: Sequence[Job], events: Events
    ) -> Generator[tuple[Job, Packed | ClientFailed], None, None]:
        self.jobs += jobs
        for job, device in zip(jobs, self.devices, strict=True):
            stats = {"process": float(job.client.id), "triton": 1.0, "kept": 2.0}
            note = ClientNote(seconds=1.0, device_uuid=device, stats=stats)
            yield job, self.failed(job.client.id) or Packed.in_memory(note.pack({}))

    def failed(self, client: int) -> ClientFailed | None:
        if client not in self.failures:
            return None
        error = self.failures[client]
        failed = ClientFailed(client, "cnn", f"{type(error).__name__}: {error}")
        failed.__cause__ = error
        return failed


def on(*devices: str) -> ClientPool:
    return ClientPool(executor=Scripted(devices), bundles=CARDS)


def test_a_client_asks_for_a_share_of_a_gpu_where_there_are_any() -> None:
    request = on().request(0.5)
    assert (request.gpus, request.memory_bytes, request.cpus) == (0.5, 0, 1.0)
    few = (Bundle(name="0", cpus=2, gpus=3, memory_bytes=2**30),)
    assert ClientPool(executor=Scripted([]), bundles=few).request(1.0).cpus == 0.33
    plain = in_this_process().request(0.5)
    assert (plain.gpus, plain.memory_bytes, plain.cpus) == (0, SHARE_BYTES, 1.0)


def test_a_cap_that_nothing_enforces_fails() -> None:
    with pytest.raises(CheckFailed, match="nothing stopped it"):
        memory_cap(in_this_process())


def test_an_overspent_client_that_ended_otherwise_fails_by_its_reason() -> None:
    pool = ClientPool(
        executor=Scripted("ab", {0: CheckFailed("others hold all of it", "ask them")}),
        bundles=CARDS,
    )
    with pytest.raises(CheckFailed, match="others hold all of it") as failed:
        memory_cap(pool)
    assert failed.value.advice == "ask them"


def test_a_neighbour_that_fails_too_fails() -> None:
    executor = Scripted("ab", {1: MemoryError("all gone")})
    with pytest.raises(CheckFailed, match="MemoryError: all gone"):
        memory_cap(ClientPool(executor=executor, bundles=CORES))


def test_clients_that_share_a_process_fail() -> None:
    with pytest.raises(CheckFailed, match="2 clients had no more than 1 processes"):
        shared_device(in_this_process())


def test_two_clients_are_asked_of_each_gpu() -> None:
    pool = on("GPU-a", "GPU-b", "GPU-a", "GPU-b")
    assert shared_device(pool) == "4 clients trained on each of 2 GPUs, in 4 processes"
    assert {job.client.request.gpus for job in pool.executor.jobs} == {0.5}  # type: ignore[attr-defined]


@pytest.mark.parametrize("devices", [["GPU-a"] * 4, ["GPU-a"] * 3 + ["GPU-b"]])
def test_clients_that_did_not_reach_every_gpu_fail(devices: list[str]) -> None:
    with pytest.raises(CheckFailed, match=r"should be on 2 GPUs were on \d"):
        shared_device(on(*devices))


def test_the_filter_is_asked_of_each_gpu() -> None:
    assert distance_filter(on("GPU-a", "GPU-b")).endswith("on each of 2 GPUs")
    with pytest.raises(CheckFailed, match="should be on 2 GPUs were on 1"):
        distance_filter(on("GPU-a", "GPU-a"))


def test_the_filter_of_this_machine_is_the_references() -> None:
    kept = int(4000 * 0.7)
    assert f"keeps the reference's {kept - 4} of 4000" in distance_filter(in_this_process())


def test_a_filter_that_keeps_others_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = client_checks.nearest_to_centroid

    def one_less(*arguments: Any, backend: str) -> Any:
        result = right(*arguments, backend=backend)
        if backend == "reference":
            object.__setattr__(result, "indices", result.indices[1:])
        return result

    monkeypatch.setattr(client_checks, "nearest_to_centroid", one_less)
    with pytest.raises(CheckFailed, match="on the CPU differs from the reference in 1 of 4000"):
        distance_filter(in_this_process())


def test_a_process_without_the_gpu_that_it_was_given_fails() -> None:
    if torch.cuda.is_available():
        pytest.skip("the GPU is there")
    pool = ClientPool(executor=InProcess(images()), bundles=CARDS)
    for check in (shared_device, distance_filter, memory_cap):
        with pytest.raises(CheckFailed, match="sees no GPU") as failed:
            check(pool)
        assert "build of PyTorch" in failed.value.advice
