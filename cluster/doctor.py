"""``python -m cluster.doctor``: says whether this machine is fit to run federations."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from cluster.clients.locks import Locks
from cluster.clients.memory_cap import OverspentError
from cluster.hardware.gpus import DriverWarning, driver_version, find_gpus
from cluster.hardware.inventory import take_inventory
from cluster.hardware.private_folders import temporary_folder
from cluster.hardware.private_ray import parse_address, prepare_environment
from cluster.hardware.processes import environment, python
from cluster.run.command_line import parse, parse_record
from cluster.run.prepare import prepare
from cluster.run.run_dir import claimed, existing, versions
from cluster.run.runner import execute
from cluster.run.steps import stop_with
from fl.bounds import Settings
from fl.errors import UserError
from fl.federation import TaskInput, TaskOutput
from fl.json_files import JsonObject, read_json, write_json
from fl.own_process import run_as_command, within
from fl.report.words import size
from fl.training.classifier import ClassifierConfig
from fl.whole_files import write_atomically
from kernels import nearest_to_centroid

LIMIT_S, RUN_S = 60.0, 180.0
"""Seconds that a look at the machine or a check may take, and each run of the federation."""
TINY = "--run-a-tiny-federation"
"""In front of a run's options has this module run it, with an ``OVERSPENDER``."""
SETTINGS = """
--method=fedmho-sd --dataset=digits --data.max-train=200 --data.max-test=100 --filter=none
--classifier.model=cnn --classifier.width=0.2 --classifier.epochs=5 --resources.classifier.gpus=0.5
--generator.width=0.1 --generator.epochs=5 --num-samples=200 --resources.generator.gpus=0.5
--fusion.epochs=2 --fusion.batch-size=16 --fusion.optimizer=sgd --fusion.lr=0.01
--fusion-timeout=60 --on-client-failure=drop"""
OVERSPENDER = 1  # the second client, of a classifier


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Settings):
    """Say whether this machine is fit: what there is, and whether what a run needs works.

    Runs a tiny federation, on Ray where that is. Exit status: 0 fit, 1 not fit, 2 bad usage.
    """

    output_dir: Path = Path("runs")
    """Directory of all runs, whose file system is checked; it is not made."""
    ray_address: str | None = None
    """HOST:PORT of a Ray cluster to check, over all its nodes. Default: one of our own, here."""
    json: Path | None = None
    """File to write everything to, for programs."""

    def check_further(self) -> None:
        """The address is HOST:PORT, and the folder of the JSON file exists."""
        if self.ray_address is not None:
            parse_address(self.ray_address)
        if self.json is not None and not self.json.parent.is_dir():
            raise UserError(f"json must be in a directory that exists, got {self.json}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0 fit, 1 not fit, 2 bad usage."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return _examine(parse_record(DoctorOptions, arguments, "python -m cluster.doctor"))
    except UserError as error:
        return stop_with(error)


def _examine(options: DoctorOptions) -> int:
    """Looks around, makes all checks, and reports each as it comes; returns the exit status."""
    try:  # a dead file system does not answer
        found = within(LIMIT_S, partial(look_around, options.output_dir))
    except Exception as error:
        print(f"not fit: cannot look around: {error}", file=sys.stderr)
        return 1
    for name, text in found.items():
        _print(f"{name:<17}", text)
    report: JsonObject = {"fit": None, "verdict": "unfinished", "checks": [], "found": found}
    _print(f"\n{'check':<17}{'result':<9}{'took':>7}  ", "finding")
    for check in ADVICE:
        report["checks"].append(result := perform(check, options))
        head = f"{result['name']:<17}{result['status']:<9}{result['seconds']:5.1f} s  "
        _print(head, result["finding"])
        if options.json:  # should this process be killed
            write_json(options.json, report)
    failed = [made for made in report["checks"] if made["status"] == "failed"]
    names = ", ".join(result["name"] for result in failed)
    said = f"not fit: {names} failed" if failed else f"fit: {len(ADVICE)} checks passed"
    if options.json:
        write_json(options.json, report | {"fit": not failed, "verdict": said})
    print(f"\n{said}")
    for result in failed:
        _print(f"{result['name']:<17}", result["advice"])
    return 1 if failed else 0


def _print(name: str, text: str) -> None:
    """Prints the text beside what it is about, in lines of the terminal's width."""
    width, indent = shutil.get_terminal_size().columns, " " * len(name.strip("\n"))
    print(textwrap.fill(name + text, width, subsequent_indent=indent, replace_whitespace=False))


def look_around(output_dir: Path) -> dict[str, str]:
    """What there is on this machine, for people. Changes nothing."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        machine = take_inventory()
    kinds = Counter(f"{gpu.name} ({size(gpu.memory_bytes)})" for gpu in machine.gpus)
    gpus = ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "none"
    package, job = versions(), os.environ.get("SLURM_JOB_ID")
    folders = {"runs": output_dir.absolute(), "temporary": temporary_folder()}
    return {
        "machine": machine.node,
        "cores": f"{machine.cpus} of {machine.cpu}",
        "memory": size(machine.memory_bytes),
        "GPUs": f"{gpus}; driver {driver_version() or 'none'}",
        "Python": package["python"],
        "PyTorch": f"{package['torch']} for CUDA {torch.version.cuda or 'none'}",
        "Triton": package["triton"],
        "Ray": package["ray"],
        "Slurm": f"{shutil.which('sbatch') or 'no sbatch'}; in {f'job {job}' if job else 'no job'}",
        **{n: f"{f}, {size(shutil.disk_usage(existing(f)).free)} free" for n, f in folders.items()},
        "notes": "; ".join(str(warning.message) for warning in caught) or "none",
    }


def runs_folder(options: DoctorOptions) -> str:
    """Where runs go a lock that one holder has is not given to another, and a file that is replaced
    stays whole for who reads it."""
    old, new = (bytes([k]) * 2**16 for k in range(2))
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing(options.output_dir)) as folder:
        first, second = (Locks(Path(folder, "locks")) for _ in range(2))
        first.acquire("doctor")
        # Elsewhere than on Linux a process is never kept out by its own locks.
        if not first.work or (sys.platform == "linux" and second.acquire("doctor")):
            raise RuntimeError("this file system has no locks: two got one lock at once")
        file = Path(folder, "replaced")
        write_atomically(file, old)
        with file.open("rb", buffering=0) as reader:
            write_atomically(file, new)
            if (reader.read(), file.read_bytes()) != (old, new):
                raise RuntimeError("a reader saw part of a file while it was replaced")
    return "locks have one holder, and a file that was replaced was whole for its reader"


def distance_filter(_: DoctorOptions) -> str:
    """The fast filter keeps the reference's samples, on each GPU or on the cores."""
    with warnings.catch_warnings(action="error", category=DriverWarning):
        found = len(find_gpus(os.environ))
    devices = [f"cuda:{k}" for k in range(torch.cuda.device_count())]
    if found and not devices:
        raise RuntimeError(f"PyTorch sees none of {found} GPUs")
    samples = torch.randn(4000, 784, generator=torch.Generator().manual_seed(0))
    samples *= torch.linspace(0.5, 1.5, 4000)[:, None]  # distances differ by more than rounding
    labels = torch.arange(4000) % 10
    expected = nearest_to_centroid(samples, labels, 10, 0.7, backend="reference").indices
    for device in devices or ["cpu"]:
        kept = nearest_to_centroid(samples.to(device), labels.to(device), 10, 0.7).indices
        if wrong := len(set(kept.tolist()) ^ set(expected.tolist())):
            raise RuntimeError(f"{device} differs from the reference in {wrong} of 4000 samples")
    return f"keeps the reference's samples on {', '.join(devices) or 'the cores'}"


def federation(options: DoctorOptions) -> str:
    """A tiny run ends, though a client overspends its memory, with the weights that one process on
    the CPU makes of the stored uploads; on Ray, where that is, with a rank on each GPU, or two."""
    cards, missing = torch.cuda.device_count(), ""
    how = ["--runtime=ray", *([] if cards else ["--fusion-ranks=2"])]
    how += [f"--ray-address={options.ray_address}"] if options.ray_address else []
    try:
        prepare_environment()
    except UserError as error:
        missing, how = str(error), ["--runtime=inprocess"]
    clients, alone = f"--num-clients={max(4, 2 * cards)}", {"CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory(prefix="onefold-doctor-") as folder:
        result, weights = run_tiny(Path(folder, "first"), clients, *how)
        expected = weights
        if cards or not missing:  # else the first was one process on the CPU
            _, expected = run_tiny(Path(folder, "second"), clients, "--runtime=inprocess", **alone)
    for client, reason in result["dropped"].items():
        stopped = missing or reason.startswith(OverspentError.__name__)
        if client != str(OVERSPENDER) or not stopped:
            raise RuntimeError(f"client {client} failed: {reason}")
    if not torch.allclose(weights, expected, rtol=1e-3, atol=1e-4):
        apart = (weights - expected).abs().max().item()
        raise RuntimeError(f"weights differ by up to {apart:.1g} from those of one process")
    trained = f"{result['clients'] - 1} clients trained, {result['fusion']['ranks']} rank(s) fused"
    return f"{trained}; {missing or 'one that went over its memory was stopped'}"


def run_tiny(run_dir: Path, *options: str, **environ: str) -> tuple[JsonObject, Tensor]:
    """The result of :func:`overspending_run` in a process of its own, and its model's weights."""
    where = [f"--output-dir={run_dir.parent}", f"--name={run_dir.name}"]
    command = [*python("cluster.doctor"), TINY, *where, *options]
    env = environment() | environ
    try:
        done = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True, timeout=RUN_S)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no end within {RUN_S:g} s") from None
    if done.returncode:
        raise RuntimeError(done.stderr)
    model = load_file(run_dir / "model" / "global.safetensors")
    return read_json(run_dir / "result.json"), torch.cat([t.flatten() for t in model.values()])


def overspend(inputs: TaskInput) -> TaskOutput:
    """Takes twice the client's main memory, or all of its share of a GPU, CUDA's own too."""
    wanted = 2 * inputs.client.request.memory_bytes
    if inputs.device.type == "cuda":
        whole = torch.cuda.get_device_properties(0).total_memory
        wanted = int(inputs.client.request.gpus * whole)
    torch.empty(wanted, dtype=torch.int8, device=inputs.device)
    raise RuntimeError("a client went over its share of memory, and nothing stopped it")


@dataclass(frozen=True, kw_only=True)
class Overspender(ClassifierConfig):
    """The training record of the client that takes too much memory."""

    task = staticmethod(overspend)


def overspending_run(options: Sequence[str]) -> None:
    """A tiny run with these options too, in which a client overspends."""
    launch = parse([*SETTINGS.split(), *options])
    prepared = prepare(launch)
    first, second, *others = prepared.members
    second = replace(second, training=Overspender(**vars(second.training)))
    prepared = replace(prepared, members=(first, second, *others))
    with claimed(launch) as run_dir:
        execute(launch, prepared, run_dir, Console(quiet=True), report=False)


ADVICE: dict[Callable[[DoctorOptions], str], str] = {
    runs_folder: "put --output-dir on a local disk, Lustre, or NFS mounted without nolock; until "
    "then start one run at a time, as two would train the same clients, and a crash may leave half "
    "a file",
    distance_filter: "install NVIDIA's driver, a PyTorch for its CUDA, the Triton that PyTorch "
    "came with, and gcc; or run without GPUs, by CUDA_VISIBLE_DEVICES=",
    federation: "free space in /tmp and /dev/shm, allow more processes (ulimit -u), name the "
    "network between ranks (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME); or run less at once: by "
    "--max-actors 1, by --fusion-ranks 1, or without Ray by --runtime inprocess",
}
"""All checks, each of which returns what it found or raises, and what to do when it fails."""


def perform(check: Callable[[DoctorOptions], str], options: DoctorOptions) -> JsonObject:
    """Makes the check. Whatever it raises is a failure, found by the message's last line."""
    began, status, advice, work = time.perf_counter(), "passed", "", partial(check, options)
    try:
        finding = work() if check is federation else within(LIMIT_S, work)
    except Exception as error:
        status, advice = "failed", ADVICE[check]
        finding = str(error).strip().rpartition("\n")[2] or type(error).__name__
    found = {"finding": finding, "advice": advice, "seconds": round(time.perf_counter() - began, 2)}
    return {"name": check.__name__.replace("_", " "), "status": status, **found}


if __name__ == "__main__":
    if sys.argv[1:2] == [TINY]:
        overspending_run(sys.argv[2:])
        sys.exit()
    # A check that hangs has left a thread behind, which must not hold up the end.
    run_as_command(main, at_once=True)
