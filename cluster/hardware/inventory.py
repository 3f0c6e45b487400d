"""What this process may use of its machine, and which requests of clients fit it."""

import contextlib
import math
import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from statistics import harmonic_mean

from cluster.hardware.gpus import Gpu, find_gpus
from cluster.scheduling.capacity import (
    Bundle,
    Need,
    at_once,
    could_fit,
    need_of,
    refusal,
)
from fl.errors import UserError
from fl.federation import Request
from fl.resources import ResourcesConfig

# The limits that cgroups and a Slurm job set on this process's cores and memory.

PROC = Path("/proc/self")
"""The kernel's files about this process."""
CGROUPS = Path("/sys/fs/cgroup")
"""Where the one hierarchy of version 2, or a folder for each of version 1, is mounted."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Most cores and bytes of memory that may be used; infinite where there is no limit."""

    cpus: float = math.inf
    memory_bytes: float = math.inf


def cgroup_limits() -> Limits:
    """CPU quota and memory limit of this process's control groups, version 1 and 2 alike.

    A limit anywhere between a group and the root of its hierarchy binds, so all are read.
    """
    groups = list(_groups())
    return Limits(
        cpus=min((_quota(g) for g in groups), default=math.inf),
        memory_bytes=min((_memory(g) for g in groups), default=math.inf),
    )


def slurm_limits(environ: Mapping[str, str], *, cpus: float, gpus: int) -> Limits:
    """Cores and memory of the Slurm allocation on this node; no limits outside a job.

    A variable that is absent, zero ("all of the node") or malformed limits nothing. Memory per CPU
    or GPU is multiplied with ``cpus`` and ``gpus`` where Slurm states no number of them.
    """
    if not environ.get("SLURM_JOB_ID"):
        return Limits()
    allotted = _number(environ, "SLURM_CPUS_ON_NODE")
    mebibytes = (
        _number(environ, "SLURM_MEM_PER_NODE"),
        _number(environ, "SLURM_MEM_PER_CPU") * (allotted or cpus),
        _number(environ, "SLURM_MEM_PER_GPU") * (_number(environ, "SLURM_GPUS_ON_NODE") or gpus),
    )
    return Limits(
        cpus=allotted or math.inf,
        memory_bytes=min((m * 2**20 for m in mebibytes if m), default=math.inf),
    )


def _groups() -> Iterator[Path]:
    """Where directories of the process's control groups, and of all those around them, would be.

    In a container the kernel may name a group by its path outside: then only the mount is there.
    """
    for line in _read(PROC / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        below = PurePosixPath(path.lstrip("/"))
        if ".." in below.parts:
            below = PurePosixPath()
        yield from (CGROUPS / controllers / p for p in (below, *below.parents))


def _quota(group: Path) -> float:
    """Cores of CPU time the group may use; infinite where it has no quota."""
    words = _read(group / "cpu.max").split() or [
        _read(group / "cpu.cfs_quota_us").strip(),
        _read(group / "cpu.cfs_period_us").strip(),
    ]
    if len(words) != 2 or not all(_is_number(w) for w in words) or not int(words[1]):
        return math.inf
    return int(words[0]) / int(words[1])


def _memory(group: Path) -> float:
    """Bytes the group may hold; infinite where it has no limit."""
    text = (_read(group / "memory.max") or _read(group / "memory.limit_in_bytes")).strip()
    return int(text) if _is_number(text) else math.inf


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if _is_number(text) else 0


def _is_number(text: str) -> bool:
    # The kernel and Slurm write 64 bits at most.
    return text.isascii() and text.isdigit() and len(text) < 20


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # not there, or not ours to read
        return ""


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
            name=self.node, cpus=self.cpus, gpus=len(self.gpus), memory_bytes=self.memory_bytes
        )

    def scaled(self, request: Request) -> Request:
        """The request as it applies to this machine: no share of a GPU where there is none."""
        return request if self.gpus else replace(request, gpus=0)

    def check(self, role: str, request: Request, *, measured: bool = False) -> None:
        """Raises `UserError` for a request that this machine can never meet, with what was asked
        for and what there is. ``measured``: whether its memory was measured, not set by hand."""
        if could_fit(self.bundle, self._need(request)):
            return
        setting = ResourcesConfig.setting(role)
        advice = f"lower {setting}"
        if measured:
            quantity = "gpus" if self.gpus else "memory_bytes"
            advice = f"one step took it: shrink model or batch, or set {setting}.{quantity}"
        client = f"{self.source}: a {role} client"
        raise UserError(f"{refusal(client, self.scaled(request), [self.bundle])}; {advice}")

    def at_once(self, request: Request) -> int:
        """How many such clients fit at the same time."""
        return at_once(self.bundle, self._need(request))

    def _need(self, request: Request) -> Need:
        return need_of(request, with_gpus=bool(self.gpus))

    def of_all_at_once(self, requests: Sequence[Request], most: int | None = None) -> int:
        """How many of these clients compute at the same time, on the mean; one at least."""
        fitting = harmonic_mean([max(1, self.at_once(request)) for request in requests])
        return min(len(requests), most or len(requests), int(fitting))


def take_inventory(environ: Mapping[str, str] = os.environ) -> Inventory:
    """Counts what the machine has, within the limits of cgroups and the Slurm job.

    ``environ``: the process's environment: the Slurm job, ``CUDA_VISIBLE_DEVICES``.
    """
    gpus = find_gpus(environ)
    cores = usable_cores()
    limits = [cgroup_limits(), slurm_limits(environ, cpus=cores, gpus=len(gpus))]
    job = environ.get("SLURM_JOB_ID")
    return Inventory(
        node=socket.gethostname(),
        cpus=max(1, int(min(cores, *(limit.cpus for limit in limits)))),
        memory_bytes=int(min(main_memory(), *(limit.memory_bytes for limit in limits))),
        gpus=gpus,
        source=f"slurm job {job}" if job else "machine",
        cpu=_cpu_name(),
    )


def main_memory() -> int:
    """Bytes of main memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def usable_cores() -> int:
    """Cores that this process may use; all of the machine's where the system does not say."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
