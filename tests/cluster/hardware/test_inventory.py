"""What a process may use, by machine and bundle, and requests that can never be met."""

import os
import socket
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.hardware import bundles, inventory
from cluster.hardware.bundles import Bundles, await_gpus
from cluster.hardware.gpus import Gpu
from cluster.hardware.inventory import Inventory, take_inventory, usable_cores
from fl.errors import UserError
from fl.federation import Request
from tests.cluster.fake_driver import CARDS, C, pretend

CPU_ONLY = {"CUDA_VISIBLE_DEVICES": ""}


def machine(*, cpus: int, gpus: int = 0, memory: int = 2**40, source: str = "machine") -> Inventory:
    cards = tuple(Gpu(uuid=f"GPU-{i}", name="H200", memory_bytes=2**37) for i in range(gpus))
    return Inventory(node="here", cpus=cpus, memory_bytes=memory, gpus=cards, source=source)


@pytest.mark.parametrize(
    ("there", "asked", "count"),
    [
        ({"cpus": 4}, {"cpus": 1, "gpus": 0.5}, 4),  # without GPUs no share of one is asked for
        ({"cpus": 4}, {"cpus": 0.5, "gpus": 0}, 8),
        ({"cpus": 4}, {"cpus": 0.1, "gpus": 0}, 40),
        ({"cpus": 64, "gpus": 2}, {"cpus": 1, "gpus": 0.4}, 4),  # a share never spans two
        ({"cpus": 64, "gpus": 2}, {"cpus": 1, "gpus": 0.2}, 10),
        ({"cpus": 64, "gpus": 2}, {"cpus": 32, "gpus": 0.2}, 2),
        ({"cpus": 8, "memory": 10_000}, {"cpus": 1, "gpus": 0.5, "memory_bytes": 3000}, 3),
        ({"cpus": 8, "memory": 10_000, "gpus": 1}, {"cpus": 1, "gpus": 0.5, "memory_bytes": 9}, 2),
        ({"cpus": 2, "memory": 10_000}, {"cpus": 1, "gpus": 0.5, "memory_bytes": 3000}, 2),
    ],
)
def test_how_many_clients_fit_at_once(
    there: dict[str, int], asked: dict[str, Any], count: int
) -> None:
    assert machine(**there).at_once(Request(**asked)) == count


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            Request(cpus=3, gpus=0),
            r"a classifier client asks for 3 cores, this machine has 2; lower resources\.class",
        ),
        (
            Request(cpus=1, gpus=0, memory_bytes=20 * 10**9),
            r"asks for 20\.0 GB of memory, this machine has 10\.0 GB; lower .*\.memory_bytes",
        ),
        (Request(cpus=1, gpus=1.5), r"asks for 1\.5 of a GPU, this machine has 2 and"),
    ],
)
def test_what_can_never_be_met_is_refused(request_: Request, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        machine(cpus=2, gpus=2, memory=10**10).check("classifier", request_)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="asks for 3 cores, slurm job 7 has 2"):
        machine(cpus=2, source="slurm job 7").check("generator", Request(cpus=3, gpus=0))


def test_all_of_it_is_not_too_much() -> None:
    everything = Request(cpus=2, gpus=1, memory_bytes=10**10)
    machine(cpus=2, gpus=1, memory=10**10).check("classifier", everything)
    machine(cpus=2, memory=10**10).check("classifier", Request(cpus=1, gpus=7))


def test_this_machine() -> None:
    here = take_inventory(CPU_ONLY)
    assert 1 <= here.cpus <= len(os.sched_getaffinity(0))
    assert 2**28 < here.memory_bytes < 2**50
    assert (here.node, here.source, here.gpus) == (socket.gethostname(), "machine", ())


def test_how_many_of_all_clients_compute_at_once() -> None:
    one = Request(cpus=1, gpus=0, memory_bytes=2**20)
    greedy, large = replace(one, memory_bytes=2**33), replace(one, cpus=16)
    here = machine(cpus=8, memory=2**34)
    assert here.of_all_at_once([one] * 100) == 8
    assert here.of_all_at_once([one] * 100, most=3) == 3
    assert here.of_all_at_once([one] * 2) == 2
    assert here.of_all_at_once([greedy] * 9) == 2
    assert here.of_all_at_once([large] * 3) == 1
    assert here.of_all_at_once([one, greedy]) == 2
    assert here.of_all_at_once([one, one, greedy]) == 3


def test_a_slurm_job_bounds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, *CARDS)
    job = {
        "SLURM_JOB_ID": "123",
        "SLURM_JOB_GPUS": "2",
        "SLURM_CPUS_ON_NODE": "1",
        "SLURM_MEM_PER_NODE": "64",
    }
    here = take_inventory(job)
    assert (here.cpus, here.memory_bytes, here.source) == (1, 64 * 2**20, "slurm job 123")
    assert [gpu.uuid for gpu in here.gpus] == [C]


def test_a_job_never_has_more_than_the_machine() -> None:
    job = {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "4096", "SLURM_MEM_PER_NODE": str(2**40)}
    assert take_inventory(CPU_ONLY | job).cpus == take_inventory(CPU_ONLY).cpus
    assert take_inventory(CPU_ONLY | job).memory_bytes == take_inventory(CPU_ONLY).memory_bytes


@pytest.mark.parametrize("quota", ["20000 100000", "199999 100000"])
def test_a_container_bounds_it_in_whole_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str
) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text(quota)
    (tmp_path / "memory.max").write_text("1000000")
    for name in ("PROC", "CGROUPS"):
        monkeypatch.setattr(inventory, name, tmp_path)
    here = take_inventory(CPU_ONLY)
    assert (here.cpus, here.memory_bytes) == (1, 1_000_000)


def test_where_the_system_tells_no_affinity_all_cores_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == os.cpu_count()
    assert take_inventory({}).cpus >= 1


GROUP = "GPU_group_aa"


def with_gpus(monkeypatch: pytest.MonkeyPatch, *available: float) -> Bundles:
    """Rooms with two GPUs of which Ray says that so many are free, one answer after another."""
    answers = list(available)
    ray = SimpleNamespace(
        cluster_resources=lambda: {GROUP: 2.0},
        available_resources=lambda: {GROUP: answers.pop(0) if answers[1:] else answers[0]},
    )
    monkeypatch.setattr(bundles, "ray", ray)
    group = SimpleNamespace(id=SimpleNamespace(hex=lambda: "aa"))
    return Bundles(group=group, all=(), nodes={})


def test_gpus_that_stay_held_are_told_of_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "RETURNED_WITHIN_S", 0.1)
    with pytest.warns(UserWarning, match=r"^1\.5 GPUs are still held 0\.1 s after") as told:
        await_gpus(with_gpus(monkeypatch, 0.5))
    (warning,) = told
    assert "\n" not in str(warning.message)


def test_gpus_that_come_free_are_waited_for_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(action="error"):
        await_gpus(with_gpus(monkeypatch, 0.0, 1.0, 2.0))
