"""The options of Slurm jobs: plain records, so that the command line parses them without Slurm."""

import math
import re
import sys
from dataclasses import asdict, dataclass
from typing import Annotated

from cluster.hardware.gpus import Gpu
from cluster.hardware.inventory import Inventory
from fl.bounds import AtLeast, AtMost, Count, Positive, Settings
from fl.errors import UserError

TIME = re.compile(
    r"(?P<minutes>\d{1,7})(:(?P<seconds>\d{1,2}))?"
    r"|(?P<h>\d{1,5}):(?P<m>\d{1,2}):(?P<s>\d{1,2})"
    r"|(?P<days>\d{1,4})-(?P<dh>\d{1,2})(:(?P<dm>\d{1,2})(:(?P<ds>\d{1,2}))?)?"
)
"""What sbatch takes as --time."""
FLAG = re.compile(r"(?P<key>[a-z][a-z0-9-]*)(=(?P<value>.*))?")
REFUSED = {
    **dict.fromkeys(("nodes", "ntasks-per-node", "ntasks"), "the launcher sets it, for nodes"),
    **dict.fromkeys(("output", "error", "open-mode"), "the launcher sets it, for logs"),
    **dict.fromkeys(("signal", "requeue", "no-requeue"), "the launcher sets it, for preemption"),
    "array": "the launcher sets it, for arrays",
    "chdir": "the launcher needs the working directory",
    **{n: f"use --slurm.{n}" for n in ("partition", "account", "qos", "constraint", "time")},
    **dict.fromkeys(("mem", "mem-per-cpu"), "use --slurm.mem-gb"),
    "cpus-per-task": "use --slurm.cpus-per-task",
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task"), "use --slurm.gpus-per-node"),
}
"""sbatch settings that are not for ``additional``, and why."""


@dataclass(frozen=True, kw_only=True)
class SlurmOptions(Settings):
    """The allocation that a run asks for."""

    submit: bool = False
    """Send the run to Slurm. ``--slurm`` alone, or any of these settings, does the same."""
    partition: str | None = None
    """Default: the cluster's."""
    nodes: Count = 1
    gpus_per_node: Annotated[int, AtLeast(0), AtMost(1000)] = 0
    cpus_per_task: Count = 4
    """Cores per node, as each node has one task."""
    mem_gb: Positive | None = None
    """Memory per node. Default: the partition's."""
    time: str = "1:00:00"
    """Time limit as sbatch takes it: minutes, H:MM:SS or D-HH:MM:SS."""
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    array_parallelism: Count = 16
    """Most runs of a job array at once; see ``python -m slurm.array``."""
    setup: tuple[str, ...] = ()
    """Shell lines to run before the run on the first node, such as "module load cuda"."""
    additional: tuple[str, ...] = ()
    """Any other sbatch setting, as KEY or KEY=VALUE without dashes: exclusive reservation=x."""

    def check_further(self) -> None:
        """Texts are one printable line, ``time`` and ``additional`` are as sbatch takes them."""
        for name, value in asdict(self).items():
            words = value if isinstance(value, tuple | list) else (value,)
            if any(isinstance(word, str) and not word.isprintable() for word in words):
                raise UserError(f"{name} must be printable text on one line, got {value!r}")
        _ = self.minutes, self.flags

    @property
    def minutes(self) -> int:
        """The time limit in whole minutes, rounded up."""
        found = TIME.fullmatch(self.time)
        if not found:
            raise UserError(f"time must be minutes, H:MM:SS or D-HH:MM:SS, got {self.time!r}")
        part = {name: int(text or 0) for name, text in found.groupdict().items()}
        hours = 24 * part["days"] + part["dh"] + part["h"]
        minutes = 60 * hours + part["dm"] + part["m"] + part["minutes"]
        minutes += math.ceil((part["ds"] + part["s"] + part["seconds"]) / 60)
        if minutes < 1:
            raise UserError(f"time in minutes must be at least 1, got {minutes}")
        return minutes

    @property
    def flags(self) -> dict[str, str | bool]:
        """The additional sbatch settings; True for one without a value."""
        flags: dict[str, str | bool] = {}
        for text in self.additional:
            found = FLAG.fullmatch(text)
            if not found:
                raise UserError(f"additional takes KEY or KEY=VALUE, got {text!r}")
            reason = REFUSED.get(found["key"])
            if found["key"] == "gres" and self.gpus_per_node:
                reason = REFUSED["gpus"]
            if reason:
                raise UserError(f"additional cannot set {found['key']}: {reason}")
            if found["key"] in flags:
                raise UserError(f"additional sets {found['key']} twice")
            flags[found["key"]] = True if found["value"] is None else found["value"]
        return flags

    @property
    def shape(self) -> Inventory:
        """One node of the allocation, as far as it is determined before there is one."""
        memory = sys.maxsize if self.mem_gb is None else int(self.mem_gb * 2**30)
        count = "a node" if self.nodes == 1 else f"each of {self.nodes} nodes"
        return Inventory(
            node=count,
            cpus=self.cpus_per_task,
            memory_bytes=memory,
            gpus=(Gpu(uuid="", name="GPU", memory_bytes=0),) * self.gpus_per_node,
            source=f"slurm partition {self.partition}" if self.partition else "slurm",
        )
