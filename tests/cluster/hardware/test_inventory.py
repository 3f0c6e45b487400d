"""What a process may use, by machine, cgroups, Slurm and bundle, and requests beyond it."""

import math
import os
import socket
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.hardware import bundles, inventory
from cluster.hardware.bundles import Bundles, await_gpus
from cluster.hardware.gpus import Gpu
from cluster.hardware.inventory import (
    Inventory,
    Limits,
    cgroup_limits,
    slurm_limits,
    take_inventory,
    usable_cores,
)
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
        ({"cpus": 1}, {"cpus": 0.00001, "gpus": 0}, 10_000),  # no unit of a core
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
    "asked",
    [
        Request(cpus=3, gpus=0),
        Request(cpus=1, gpus=0, memory_bytes=20 * 10**9),
        Request(cpus=1, gpus=1.5),
    ],
)
def test_what_can_never_be_met_is_refused(asked: Request) -> None:
    with pytest.raises(UserError) as caught:
        machine(cpus=2, gpus=2, memory=10**10).check("classifier", asked)
    message = str(caught.value)
    assert message.startswith(f"machine: a classifier client asks for {asked.cpus:g} cores")
    assert message.endswith("2 cores, 2 GPUs and 10.0 GB of memory; lower resources.classifier")
    with pytest.raises(UserError, match=r"shrink model or batch, or set .*\.gpus"):
        machine(cpus=2, gpus=2, memory=10**10).check("classifier", asked, measured=True)


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


JOB = {"SLURM_JOB_ID": "7"}


def limits(folder: Path, groups: str) -> Limits:
    """Of a process in these groups, whose hierarchies are mounted below the folder."""
    (folder / "cgroup").write_text(groups)
    with mock.patch.multiple(inventory, PROC=folder, CGROUPS=folder):
        return cgroup_limits()


def write(folder: Path, **files: str) -> None:
    """Files of a group; a double underscore stands for the dot in their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_version_2(tmp_path: Path) -> None:
    write(tmp_path / "job/step", cpu__max="250000 100000", memory__max="4096")
    assert limits(tmp_path, "0::/job/step\n") == Limits(cpus=2.5, memory_bytes=4096)


def test_a_limit_further_up_binds_too(tmp_path: Path) -> None:
    write(tmp_path / "job/step", cpu__max="max 100000", memory__max="max")
    write(tmp_path / "job", cpu__max="100000 100000", memory__max="999")
    write(tmp_path, memory__max="1")
    assert limits(tmp_path, "0::/job/step\n") == Limits(cpus=1, memory_bytes=1)


def test_version_1_with_a_hierarchy_for_each_controller(tmp_path: Path) -> None:
    write(tmp_path / "memory/m", memory__limit_in_bytes="5000")
    write(tmp_path / "memory/c", memory__limit_in_bytes="1")  # another's group
    write(tmp_path / "cpu,cpuacct/c", cpu__cfs_quota_us="150000", cpu__cfs_period_us="100000")
    groups = "4:memory:/m\n3:cpu,cpuacct:/c\n1:name=systemd:/s\n0::/\n"
    assert limits(tmp_path, groups) == Limits(cpus=1.5, memory_bytes=5000)
    write(tmp_path / "cpu,cpuacct/c", cpu__cfs_quota_us="-1")
    assert limits(tmp_path, groups) == Limits(memory_bytes=5000)


@pytest.mark.parametrize("group", ["/docker/ab", "/", "/../other"])
def test_inside_a_container_the_mount_is_the_group(tmp_path: Path, group: str) -> None:
    write(tmp_path / "memory", memory__limit_in_bytes="77")
    assert limits(tmp_path, f"4:memory:{group}\n").memory_bytes == 77


@pytest.mark.parametrize(
    "text", ["", "max", "-1", "lots", "1 2 3", "100 0", "9" * 5000, "\N{SUPERSCRIPT TWO}"]
)
def test_what_is_no_limit_limits_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path, cpu__max=text, memory__max=text)
    assert limits(tmp_path, "0::/\nnonsense\n::\n") == Limits()


def test_a_system_without_such_files(tmp_path: Path) -> None:
    with mock.patch.multiple(inventory, PROC=tmp_path, CGROUPS=tmp_path):
        assert cgroup_limits() == Limits()
        (tmp_path / "cgroup").write_bytes(b"0::/\n\xff")
        assert cgroup_limits() == Limits()


@pytest.mark.parametrize(
    ("variables", "cpus", "mebibytes"),
    [
        ({}, math.inf, math.inf),
        ({"SLURM_CPUS_ON_NODE": "6"}, 6, math.inf),
        ({"SLURM_MEM_PER_NODE": "100"}, math.inf, 100),
        ({"SLURM_MEM_PER_NODE": "0"}, math.inf, math.inf),
        ({"SLURM_MEM_PER_CPU": "10", "SLURM_CPUS_ON_NODE": "6"}, 6, 60),
        ({"SLURM_MEM_PER_CPU": "10"}, math.inf, 80),
        ({"SLURM_MEM_PER_GPU": "10"}, math.inf, 20),
        ({"SLURM_MEM_PER_GPU": "10", "SLURM_GPUS_ON_NODE": "4"}, math.inf, 40),
        ({"SLURM_CPUS_ON_NODE": "many", "SLURM_MEM_PER_NODE": "-3"}, math.inf, math.inf),
    ],
)
def test_slurm(variables: dict[str, str], cpus: float, mebibytes: float) -> None:
    limits = slurm_limits(JOB | variables, cpus=8, gpus=2)
    assert limits == Limits(cpus=cpus, memory_bytes=mebibytes * 2**20)
    assert slurm_limits(variables, cpus=8, gpus=2) == Limits(), "no job"
    if "SLURM_MEM_PER_GPU" in variables and "SLURM_GPUS_ON_NODE" not in variables:
        assert slurm_limits(JOB | variables, cpus=8, gpus=0) == Limits(), "no GPU"


@settings(max_examples=30)
@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_gives_positive_limits(cpus: str, memory: str) -> None:
    variables = {"SLURM_CPUS_ON_NODE": cpus, "SLURM_MEM_PER_CPU": memory}
    limits = slurm_limits(JOB | variables, cpus=8, gpus=0)
    assert limits.cpus >= 1
    assert limits.memory_bytes >= 2**20


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
