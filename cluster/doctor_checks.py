"""The doctor's checks: locks and renames in the folder of runs, a tiny federation, the filter."""

import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file

from cluster.clients.locks import Locks
from cluster.clients.memory_cap import OverspentError
from cluster.doctor_federation import OVERSPENDER
from cluster.hardware.gpus import DriverWarning, find_gpus
from cluster.hardware.private_ray import prepare_environment
from cluster.hardware.shadows import environment, python
from fl.errors import UserError
from fl.json_files import JsonObject, read_json
from fl.own_process import within
from fl.whole_files import write_atomically
from kernels import nearest_to_centroid

ADVICE = {
    "lock": "put --output-dir on a file system with locks (NFS: mounted without nolock); until "
    "then start one run at a time, as two would train the same clients",
    "atomic rename": "put --output-dir on a local disk, NFS or Lustre: on this file system a crash "
    "can leave half a file in a run's directory",
    "federation": "free space in /tmp and /dev/shm, and allow more processes (ulimit -u); a Ray "
    "cluster to join must have this node and be idle; --runtime inprocess runs without Ray",
    "memory cap": "run few clients at once, by --max-actors: one that takes too much memory can "
    "end all others",
    "fit over ranks": "run with --fusion-ranks 1; where ranks do not reach each other, "
    "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the network to use",
    "distance filter": "install NVIDIA's driver, a PyTorch for its CUDA, the Triton that PyTorch "
    "came with, and gcc; or run without GPUs, by CUDA_VISIBLE_DEVICES=",
}
"""What to do when a check fails."""
LIMIT_S, FEDERATION_S, END_S = 60.0, 180.0, 15.0
"""Seconds that a check may take, that a run of the federation may take, and then its end."""
TRY_LOCK = """
import pathlib, sys, cluster.clients.locks
print(cluster.clients.locks.Locks(pathlib.Path(sys.argv[1])).acquire("doctor"))
"""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of a check: what was found, in a line, and what to do about a failure."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    seconds: float = 0.0
    finding: str
    advice: str = ""


def perform(name: str, check: Callable[[], str]) -> Result:
    """Makes the check. Whatever it raises is a failure, found by the message's last line."""
    began = time.perf_counter()
    try:
        result = Result(name=name, status="passed", finding=check())
    except Exception as error:
        said = str(error).strip().rpartition("\n")[2] or type(error).__name__
        result = Result(name=name, status="failed", finding=said, advice=ADVICE[name])
    return replace(result, seconds=round(time.perf_counter() - began, 2))


def run_checks(output_dir: Path, ray_address: str | None) -> Generator[Result, None, None]:
    """Yields each check's result as soon as it is known.

    Args:
        output_dir: the folder of all runs, which need not exist.
        ray_address: HOST:PORT of a Ray cluster to join; None to start one, and to end it.
    """
    yield perform("lock", partial(within, LIMIT_S, partial(lock, output_dir)))
    yield perform("atomic rename", partial(within, LIMIT_S, partial(rename, output_dir)))
    with tempfile.TemporaryDirectory(prefix="onefold-doctor-") as folder:
        yield from federation(Path(folder), ray_address)
    yield perform("distance filter", partial(within, LIMIT_S, filters))


def lock(output_dir: Path) -> str:
    """A second process gets a lock only once the first has given it up."""
    with tempfile.TemporaryDirectory(prefix=".onefold-doctor-", dir=above(output_dir)) as folder:
        ours = Locks(Path(folder, "locks"))
        command = [sys.executable, "-P", "-c", TRY_LOCK, f"{folder}/locks"]
        other = partial(subprocess.check_output, command, env=environment(), text=True)
        ours.acquire("doctor")
        while_held = other()
        ours.release("doctor")
        if (while_held, other()) != ("False\n", "True\n"):
            raise RuntimeError("two processes got one lock at once, or none got a free one")
    return "one process at a time holds it"


def rename(output_dir: Path) -> str:
    """A file that is replaced again and again is whole whenever it is read."""
    reads, contents = 0, [bytes([k]) * 2**16 for k in range(200)]
    with (
        tempfile.TemporaryDirectory(prefix=".onefold-doctor-", dir=above(output_dir)) as folder,
        ThreadPoolExecutor(1) as pool,
    ):
        file = Path(folder, "replaced")
        write_atomically(file, contents[0])
        writing = pool.submit(lambda: list(map(partial(write_atomically, file), contents)))
        while not writing.done():
            if file.read_bytes() not in contents:
                raise RuntimeError("a reader saw part of a file while it was replaced")
            reads += 1
        writing.result()
    return f"a file replaced {len(contents)} times was whole in each of {reads} reads"


def above(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.exists())


def federation(folder: Path, ray_address: str | None) -> Generator[Result, None, None]:
    """Checks a tiny run on Ray, its memory cap, and its server's ranks against one process."""
    cards, missing, on_ray = torch.cuda.device_count(), "", ["--runtime=ray"]
    try:
        if ray_address:
            on_ray.append(f"--ray-address={ray_address}")
        else:
            prepare_environment()
    except UserError as error:
        missing = str(error)
    clients = f"--num-clients={max(4, 2 * cards)}"
    ranks = [] if cards else ["--fusion-ranks=2"]
    options = ["--runtime=inprocess"] if missing else [*on_ray, *ranks]
    run = perform("federation", partial(trained, folder, clients, *options))
    yield run
    missing = missing or ("the federation failed" if run.status == "failed" else "")
    for name, check in (
        ("memory cap", partial(capped, folder)),
        ("fit over ranks", partial(compared, folder, clients)),
    ):
        skipped = Result(name=name, status="skipped", finding=missing)
        yield skipped if missing else perform(name, check)


def trained(folder: Path, *options: str) -> str:
    """Clients train and the server fuses, without the client that is to fail."""
    result = _run(folder, "first", *options)
    for client, reason in result["dropped"].items():
        if client != str(OVERSPENDER):
            raise RuntimeError(f"client {client} failed: {reason}")
    clients, ranks = result["clients"] - 1, result["fusion"]["ranks"]
    return f"{clients} clients trained, and the server fused on {ranks} rank(s)"


def capped(folder: Path) -> str:
    """The client that overspent was stopped, by the memory cap."""
    reason = read_json(folder / "first" / "result.json")["dropped"][str(OVERSPENDER)]
    if not reason.startswith(OverspentError.__name__):
        raise RuntimeError(reason)
    return "a client that went over its share was stopped, its neighbours trained on"


def compared(folder: Path, clients: str) -> str:
    """The server comes to the same weights in one process, of the same uploads from the store."""
    _run(folder, "second", clients, "--runtime=inprocess", CUDA_VISIBLE_DEVICES="")
    models = [load_file(folder / run / "model/global.safetensors") for run in ("first", "second")]
    first, second = (torch.cat([t.flatten() for t in model.values()]) for model in models)
    apart = (first - second).abs().max().item()
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-4):
        raise RuntimeError(f"weights differ by up to {apart:.1g} from those of one process")
    return f"the weights are those of one process on the CPU (apart {apart:.1g} at most)"


def _run(folder: Path, name: str, *options: str, **environ: str) -> JsonObject:
    """The result of a run of :mod:`cluster.doctor_federation`, in a process of its own."""
    command = [*python("cluster.doctor_federation"), f"--output-dir={folder}", f"--name={name}"]
    environ, said = environment() | environ, folder / "said"
    with (
        said.open("w") as stderr,
        subprocess.Popen(  # out of reach of Ctrl-C, which would interrupt its end a second time
            [*command, *options], env=environ, stderr=stderr, start_new_session=True
        ) as process,
    ):
        try:
            process.wait(FEDERATION_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"no end within {FEDERATION_S:g} s") from None
        finally:  # also of an interrupt: it may have a Ray to end
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()
    if process.returncode:
        raise RuntimeError(said.read_text(errors="replace"))
    return read_json(folder / name / "result.json")


def filters() -> str:
    """The fast filter keeps the reference's samples, on each GPU or on the cores."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DriverWarning)
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
