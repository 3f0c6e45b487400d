"""The launch command's options: how to run, beside what determines the result; also as a Slurm job,
in plain records, so that the command line parses them without Slurm."""

import math
import re
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro

from cluster.hardware.gpus import Gpu
from cluster.hardware.inventory import Inventory
from cluster.hardware.private_ray import parse_address
from fl.bounds import AtLeast, AtMost, Count, NotNegative, Positive, Settings
from fl.config import RunConfig
from fl.errors import UserError
from fl.methods.registry import get_method

Options = TypeVar("Options")

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


@dataclass(frozen=True, kw_only=True)
class Machine(Settings):
    """What clients and server compute on, and how long they are waited for. No result depends on
    it, but for who failed."""

    runtime: Literal["ray", "inprocess"] = "ray"
    """ray: each client trains in its own Ray actor. inprocess: one by one, in this process."""
    ray_address: str | None = None
    """HOST:PORT of a running Ray cluster to use. Default: Onefold starts and stops its own."""
    max_actors: Count | None = None
    """Largest number of client actors at once. Default: as many as the resources allow."""
    client_timeout: Positive | None = None
    """Seconds after which a client that has not finished is ended and tried again. Default: 20
    times the time expected from its model's measured rate, at least 600."""
    on_client_failure: Literal["stop", "drop"] = "stop"
    """When a client fails at every attempt: stop the run, or drop the client and record that."""
    fusion_ranks: Count | None = None
    """Ranks that share the server's work. Default: one per GPU; without GPUs one, in the
    launch's own process."""
    fusion_timeout: Positive = 600.0
    """Seconds after which ranks give up waiting for one that is silent."""
    fusion_checkpoint: NotNegative = 30.0
    """Seconds between two checkpoints of a fit, for --resume; 0: one after each epoch."""


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(Machine, Generic[Options]):
    """Train a federation's clients, gather their one upload, and fuse them into one model."""

    config: Path | None = None
    """YAML file of settings. The command line overrides it; it overrides the preset."""
    preset: str | None = None
    """A named file of settings that comes with Onefold, or the path of a YAML file of your own that
    serves several methods: settings of other methods are ignored."""
    output_dir: Path = Path("runs")
    """Directory of all runs, each in a directory of its own."""
    name: str | None = None
    """Name of the run's directory. Default: made of method, data set, partition and seed."""
    data_root: Path = Path("data")
    """Folder of the data sets, in torchvision's layout."""
    save_best: bool = False
    """Also keep the global model after its most accurate round, as model/best.safetensors. Measure
    it by data.validation, so that the test split chooses nothing."""
    save_every: Count | None = None
    """Also keep the global model after every Nth round, as model/round-N.safetensors."""
    track: tuple[Literal["wandb", "mlflow"], ...] = ()
    """Experiment trackers that record the run too: wandb, mlflow, or both."""
    report_real_images: bool = False
    """Show real training images in the report, which trackers get too. Not with dp.epsilon."""
    dry_run: bool = False
    """Print the resolved configuration and the placement plan, and start nothing."""
    smoke: bool = False
    """Run one step per client and a few of each fit, at the run's real sizes; print what the whole
    run would take, and keep nothing."""
    resume: bool = False
    """Continue the run in the directory; finished clients are not trained again."""
    overwrite: bool = False
    """Replace the run in the directory."""
    slurm: SlurmOptions = SlurmOptions()
    wait: bool = False
    """With --slurm: follow the job, and exit with its status."""
    run: Annotated[RunConfig[Options], tyro.conf.arg(name="")]

    def check_further(self) -> None:
        """Refuses options that exclude each other, or that need another which is missing."""
        for tracker in self.track:
            spec = find_spec(tracker)
            if spec is None or spec.origin is None:  # a mere folder of that name has no origin
                raise UserError(
                    f"--track {tracker} needs a package: pip install 'onefold[{tracker}]'"
                )
        if self.report_real_images and self.run.dp.epsilon is not None:
            raise UserError(
                "--report-real-images cannot be used with dp.epsilon: it shows the images that "
                "differential privacy protects"
            )
        if (self.save_best or self.save_every) and get_method(self.run.method).one_shot:
            raise UserError(f"save_best and save_every need many rounds: {self.run.method} has one")
        if self.resume and self.overwrite:
            raise UserError("--resume and --overwrite exclude each other")
        if self.smoke and (self.dry_run or self.slurm.submit):
            raise UserError("--smoke excludes --dry-run and --slurm")
        if self.wait and not self.slurm.submit:
            raise UserError("--wait needs --slurm")
        if self.slurm.submit and self.ray_address:
            raise UserError("--slurm starts its own Ray cluster; leave out --ray-address")
        if self.slurm.nodes > 1 and self.runtime != "ray":
            raise UserError("only --runtime ray can use more than one node")
        if self.ray_address is not None:
            if self.runtime != "ray":
                raise UserError("--ray-address needs --runtime ray")
            parse_address(self.ray_address)
        if self.fusion_ranks is not None and self.fusion_ranks > 1 and self.runtime == "inprocess":
            raise UserError("fusion_ranks above 1 need --runtime ray")

    @property
    def starts_ray(self) -> bool:
        """Whether it needs a Ray cluster of its own, here and now."""
        return self.runtime == "ray" and not (self.ray_address or self.dry_run or self.slurm.submit)

    def refuse_smoke(self) -> None:
        """For commands other than ``onefold run``: raises `UserError` for a smoke run."""
        if self.smoke:
            raise UserError("only onefold run takes --smoke")


Launch = LaunchOptions[Any]
"""The options with the settings of any method."""
