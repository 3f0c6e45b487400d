"""What there is on this machine, before anything is tried: hardware, versions, Slurm, disks."""

import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from cluster.checks.file_system import FileSystem, file_system
from cluster.hardware.gpus import DriverWarning, driver_version
from cluster.hardware.inventory import Inventory, take_inventory
from cluster.hardware.private_folders import temporary_folder
from cluster.run.run_dir import versions


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Slurm as this process sees it."""

    sbatch: str | None
    """Path of the command; None where it is not installed."""
    job: str | None = None
    """Id of the job that this process is in; None outside a job."""
    node: str | None = None
    """This node's name in the job."""
    nodes: str | None = None
    """All the job's nodes, as Slurm writes them: ``node[1-4]``."""
    num_nodes: int = 0


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found."""

    machine: Inventory
    driver: str | None
    """Version of NVIDIA's driver."""
    driver_error: str | None
    """Why GPUs could not be looked for, though a driver is there."""
    notes: tuple[str, ...]
    """Whatever else was odd."""
    versions: Mapping[str, str]
    cuda: str | None
    """Version of CUDA that PyTorch was built for; None where it was built without."""
    slurm: Slurm
    output_dir: FileSystem
    temporary: FileSystem
    """Where Ray has its sockets and logs, and objects that do not fit its memory."""


def look_around(output_dir: Path, environ: Mapping[str, str] = os.environ) -> Found:
    """Looks at this machine, and changes nothing.

    Args:
        output_dir: the folder of all runs, which need not exist.
        environ: the process's environment.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        machine = take_inventory(environ)
    errors = [str(w.message) for w in caught if issubclass(w.category, DriverWarning)]
    return Found(
        machine=machine,
        driver=driver_version(environ),
        driver_error=errors[0] if errors else None,
        notes=tuple(str(w.message) for w in caught if str(w.message) not in errors),
        versions=versions(),
        cuda=torch.version.cuda,
        slurm=find_slurm(environ),
        output_dir=file_system(output_dir),
        temporary=file_system(temporary_folder()),
    )


def find_slurm(environ: Mapping[str, str]) -> Slurm:
    """Whether jobs can be submitted from here, and the job that this process is in."""
    sbatch = shutil.which("sbatch", path=environ.get("PATH", ""))
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return Slurm(sbatch=sbatch)
    return Slurm(
        sbatch=sbatch,
        job=job,
        node=environ.get("SLURMD_NODENAME"),
        nodes=environ.get("SLURM_JOB_NODELIST"),
        num_nodes=int(environ.get("SLURM_JOB_NUM_NODES", "1")),
    )
