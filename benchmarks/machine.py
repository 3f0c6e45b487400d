"""This machine: its name, what it can do at most, and a file to which figures go as they come.

    python benchmarks/machine.py --json FILE

Measures the bounds that the other benchmarks are held against: bytes per second of a large copy,
read and written, and FLOP per second of large matrix products in each precision.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import psutil  # type: ignore[import-untyped]
import torch
import tyro

from fl.json_files import JsonObject
from fl.process import arithmetic

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measures this machine's bounds."""

    json: Path | None = None
    """File that gets a line of JSON for each figure."""


def main(options: Options) -> int:
    """Prints each figure as it comes; returns the exit status."""
    device, rows = default_device(), Rows("machine", options.json)
    began = time.perf_counter()
    torch.nn.Conv2d(8, 8, 3).to(device)(torch.rand(4, 8, 9, 9, device=device))
    settle(device)
    found = {"first_convolution_s": time.perf_counter() - began, **describe_machine(device.type)}
    rows.add(kind="machine", **found)
    print(", ".join(f"{k} {v}" for k, v in found.items()))
    figures: list[tuple[str, Callable[[], float]]] = [
        ("copy_bytes_per_second", lambda: copy_bandwidth(device))
    ]
    for name in PRECISIONS if device.type == "cuda" else PRECISIONS[:1]:
        figures.append((f"{name}_flop_per_second", lambda name=name: matrix_rate(name, device)))  # type: ignore[misc]
    for figure, measure in figures:
        rate = measure()
        rows.add(kind="ceiling", name=figure, rate=rate)
        print(f"{figure}: {rate:.3g}", flush=True)
    return 0


class Rows:
    """A file of JSON lines: each row is on disk before the next is measured.

    Args:
        benchmark: name of the program, which every row tells.
        path: the file, to which rows are added; None for none.
    """

    def __init__(self, benchmark: str, path: Path | None) -> None:
        self._benchmark, self._path = benchmark, path

    def add(self, **figures: object) -> None:
        """Adds a row. It is one write: who is killed leaves whole lines."""
        if self._path is None:
            return
        line = json.dumps({"benchmark": self._benchmark, **figures}) + "\n"
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())


def default_device() -> torch.device:
    """The GPU, where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def settle(device: torch.device) -> None:
    """Waits until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device, *, repeats: int = 10) -> float:
    """Seconds of one call, the best of several.

    On a GPU a few calls are queued between two waits for it, so that the host's waiting is in none.
    """
    at_once = 5 if device.type == "cuda" else 1
    times = []
    for _ in range(repeats + 1):  # the first warms up
        settle(device)
        began = time.perf_counter()
        for _ in range(at_once):
            work()
        settle(device)
        times.append((time.perf_counter() - began) / at_once)
    return min(times[1:])


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read plus bytes written per second, by the best of many large copies."""
    size = 1 << (30 if device.type == "cuda" else 28)
    source = torch.rand(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device, repeats=20)


def matrix_rate(precision: Precision, device: torch.device) -> float:
    """FLOP per second of a large product."""
    size = 8192 if device.type == "cuda" else 1024
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    factor = torch.randn(size, size, device=device, dtype=kind)
    with arithmetic(device, tf32=precision == "tf32"):
        return 2 * size**3 / seconds_of(lambda: factor @ factor, device)


def describe_machine(device: str) -> JsonObject:
    """Date, machine and versions."""
    versions = {}
    for package in ("torch", "triton", "scikit-learn", "flash-kmeans"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": torch.cuda.get_device_name() if device != "cpu" else processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "busy_percent": psutil.cpu_percent(interval=1),
        "python": platform.python_version(),
        **versions,
    }


def here_and_now() -> str:
    """The minute, and this machine in a few words."""
    minute = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{minute}, {processor()}, {os.cpu_count()} cores, torch {torch.__version__}"


@contextlib.contextmanager
def watched(
    pid: int, every_s: float, see: Callable[[list[psutil.Process]], None]
) -> Iterator[None]:
    """Inside, has a process and its descendants seen again and again, each so many seconds."""
    done = threading.Event()

    def watch() -> None:
        process = psutil.Process(pid)
        while not done.wait(every_s):
            with contextlib.suppress(psutil.Error):
                see([process, *process.children(recursive=True)])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    yield
    done.set()
    watcher.join()


def processor() -> str:
    """Name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
