import os
from pathlib import Path

import pytest

from cluster.checks.found import Slurm, find_slurm, look_around
from tests.cluster.fake_driver import ROWS, command, nvidia_smi


def test_cores_memory_versions_and_disks_are_found(tmp_path: Path) -> None:
    found = look_around(tmp_path / "runs", {"PATH": ""})
    assert found.machine.cpus == len(os.sched_getaffinity(0))
    assert found.machine.memory_bytes > 2**28
    assert {"python", "torch", "triton", "ray"} <= found.versions.keys()
    assert found.output_dir.folder == str(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    assert Path(found.temporary.folder).is_dir()
    assert found.slurm == Slurm(sbatch=None)


def test_gpus_are_found_with_their_driver(tmp_path: Path) -> None:
    script = f"case $1 in *driver*) echo 550.54; echo 550.54;; *) printf '{ROWS}';; esac"
    found = look_around(tmp_path, command(tmp_path, script))
    assert [gpu.name for gpu in found.machine.gpus] == ["NVIDIA H200"] * 3
    assert (found.driver, found.driver_error, found.notes) == ("550.54", None, ())


def test_a_driver_that_fails_is_no_machine_without_gpus(tmp_path: Path) -> None:
    found = look_around(tmp_path, nvidia_smi(tmp_path, "driver mismatch", status=9))
    assert found.machine.gpus == ()
    assert found.driver is None
    assert found.driver_error
    assert "status 9: driver mismatch" in found.driver_error
    assert found.notes == ()


def test_other_warnings_are_noted(tmp_path: Path) -> None:
    environ = nvidia_smi(tmp_path, ROWS) | {"SLURM_JOB_ID": "7"}
    found = look_around(tmp_path, environ)
    assert found.driver_error is None
    (note,) = found.notes
    assert "gave this job none of the machine's 3 GPUs" in note


def test_slurm_and_its_job_are_found(tmp_path: Path) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    path = {"PATH": str(tmp_path)}
    assert find_slurm(path) == Slurm(sbatch=str(sbatch))
    job = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "alpha", "SLURM_JOB_NODELIST": "alpha,beta"}
    found = find_slurm({**path, **job, "SLURM_JOB_NUM_NODES": "2"})
    assert (found.job, found.node, found.nodes) == ("12", "alpha", "alpha,beta")
    assert found.num_nodes == 2
    assert find_slurm(job).num_nodes == 1


@pytest.mark.filterwarnings("error")
def test_looking_around_warns_of_nothing_itself(tmp_path: Path) -> None:
    look_around(tmp_path, nvidia_smi(tmp_path, "", status=9))
