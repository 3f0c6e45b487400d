"""What cgroups and Slurm leave of a machine, from files and variables as they are found."""

import math
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.hardware import inventory
from cluster.hardware.inventory import Limits, cgroup_limits, slurm_limits

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
        ({"SLURM_CPUS_ON_NODE": "6", "SLURM_CPUS_PER_TASK": "2"}, 6, math.inf),
        ({"SLURM_CPUS_PER_TASK": "2"}, 2, math.inf),
        ({"SLURM_CPUS_PER_TASK": "2", "SLURM_NTASKS_PER_NODE": "3"}, 6, math.inf),
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


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_gives_positive_limits(cpus: str, memory: str) -> None:
    variables = {"SLURM_CPUS_ON_NODE": cpus, "SLURM_MEM_PER_CPU": memory}
    limits = slurm_limits(JOB | variables, cpus=8, gpus=0)
    assert limits.cpus >= 1
    assert limits.memory_bytes >= 2**20
