"""What this process may use of its machine, and which requests of clients fit it."""

import contextlib
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.hardware.gpus import Gpu, find_gpus
from cluster.hardware.limits import PROC, cgroup_limits, slurm_limits
from cluster.scheduling.capacity import Bundle
from fl.errors import UserError
from fl.federation import Request
from fl.report.words import size
from fl.resources import ResourcesConfig


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Cores, memory and GPUs that this process may use."""

    node: str
    """Host name."""
    cpus: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    source: str
    """What sets the bounds: "machine", or the Slurm job, as in "slurm job 123"."""
    cpu: str = "cpu"
    """Name of the processor."""

    @property
    def device(self) -> str:
        """Name of what clients train on."""
        return self.gpus[0].name if self.gpus else self.cpu

    @property
    def bundle(self) -> Bundle:
        """All of it, as one bundle to place clients in."""
        return Bundle(
            name=self.node,
            cpus=self.cpus,
            gpus=len(self.gpus),
            memory_bytes=self.memory_bytes,
        )

    def scaled(self, request: Request) -> Request:
        """The request as it applies to this machine: no share of a GPU where there is none."""
        return request if self.gpus else replace(request, gpus=0)

    def check(self, role: str, request: Request, *, measured: bool = False) -> None:
        """Refuses a request that this machine can never meet.

        Args:
            role: the client's role.
            request: what it asks for.
            measured: whether its memory was measured, not set by hand.

        Raises:
            UserError: with what was asked for and what there is.
        """
        setting = ResourcesConfig.setting(role)
        advice = f"lower {setting}"
        if measured:
            advice = f"one step took it: shrink model or batch, or set {setting}"
        place = "this machine" if self.source == "machine" else self.source
        if request.cpus > self.cpus:
            raise UserError(
                f"a {role} client asks for {request.cpus:g} cores, {place} has {self.cpus}; "
                f"lower {setting}.cpus"
            )
        if request.memory_bytes > self.memory_bytes:
            raise UserError(
                f"a {role} client asks for {size(request.memory_bytes)} of memory, {place} has "
                f"{size(self.memory_bytes)}; {advice}.memory_bytes"
            )
        if self.gpus and request.gpus > 1:
            raise UserError(
                f"a {role} client asks for {request.gpus:g} of a GPU, {place} has {len(self.gpus)} "
                f"and a client gets one at most; {advice}.gpus"
            )

    def at_once(self, request: Request) -> int:
        """How many such clients fit at the same time."""
        scaled = self.scaled(request)
        fits = _times(self.cpus, scaled.cpus)
        if scaled.memory_bytes:
            fits = min(fits, self.memory_bytes // scaled.memory_bytes)
        if scaled.gpus:
            # A share never spans two GPUs.
            fits = min(fits, len(self.gpus) * _times(1, scaled.gpus))
        return fits


def take_inventory(environ: Mapping[str, str] = os.environ, *, proc: Path = PROC) -> Inventory:
    """Counts what the machine has, within the limits of cgroups and the Slurm job.

    Args:
        environ: the process's environment: the Slurm job, ``CUDA_VISIBLE_DEVICES``, the PATH.
        proc: the kernel's files about the process; see :mod:`cluster.hardware.limits`.
    """
    gpus = find_gpus(environ)
    cores = usable_cores()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [cgroup_limits(proc), slurm_limits(environ, cpus=cores, gpus=len(gpus))]
    job = environ.get("SLURM_JOB_ID")
    return Inventory(
        node=socket.gethostname(),
        cpus=max(1, int(min(cores, *(limit.cpus for limit in limits)))),
        memory_bytes=int(min(memory_bytes, *(limit.memory_bytes for limit in limits))),
        gpus=gpus,
        source=f"slurm job {job}" if job else "machine",
        cpu=_cpu_name(),
    )


def usable_cores() -> int:
    """Cores that this process may use; all of the machine's where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _times(whole: float, part: float) -> int:
    """How often the part goes into the whole, where 0.1 goes into 1 ten times."""
    return int(whole / part + 1e-9)
