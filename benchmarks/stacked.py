"""Many small clients: clients per second by the way in which they are run.

    python benchmarks/stacked.py --data-root DIR --json FILE

Every way trains the same clients: 200 MNIST images each, the fully connected CVAE-small, Adam,
batches of 64, 3 epochs. Each runs in a process of its own. In each round all ways run in turn, so
that all have the same machine; a rate is the median over rounds, of the clients that finished after
the first ones did. Start-up, from the start of the process until the first client trains, is
reported separately; with an actor per client nearly all is start-up, so it counts there. The bound
of cores is what they could do if training were nothing but its matrix products at the best speed
measured here for a product of its size; that of a GPU, if all that took time were the bytes of the
weights. Ratios are to the quicker of plain PyTorch on one thread and on all.

On a GPU, and on the same machine's cores:

    python benchmarks/stacked.py --ways "one by one, one process" "by hand, one process" \\
        "Onefold, one process" --clients 200 --rounds 1 --data-root DIR --json FILE
    CUDA_VISIBLE_DEVICES= python benchmarks/stacked.py ...
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
import tyro
from machine import Rows, copy_bandwidth, default_device, describe_machine, seconds_of, watched
from rich.console import Console
from rich.table import Table
from stacked_way import (
    BASELINES,
    ON_A_CARD,
    SAMPLES,
    TRAINING,
    Plainly,
    Way,
    alone,
    job,
    ways,
)
from torch.utils.flop_counter import FlopCounterMode

from fl.data.datasets import Dataset, load
from fl.events import Events
from fl.federation import Request
from fl.json_files import JsonObject
from fl.training.generator import starting_generator


@dataclass(frozen=True, kw_only=True)
class Options:
    """Times the ways of running many small clients."""

    clients: int = 1000
    """Clients of the fastest way; the slower ones get some of them."""
    rounds: int = 3
    """Times that every way is run."""
    data_root: Path = Path("data")
    """Directory of MNIST, in torchvision's layout."""
    ways: tuple[str, ...] = ()
    """Names of ways; all but what is for GPUs alone if none is given."""
    json: Path | None = None
    """File that gets a line of JSON for each figure, as soon as it is known."""


def main(options: Options) -> int:
    """Prints the table; writes the JSON if asked to."""
    dataset = load("mnist", options.data_root, max_train=None, max_test=None)
    console, progress = Console(width=120), Console(stderr=True)
    torch.set_num_threads(psutil.cpu_count())
    rows = Rows("stacked", options.json)
    machine = describe_machine(default_device().type)
    rows.add(kind="machine", **machine)
    bound = bound_of(dataset)
    rows.add(kind="bound", device=machine["device"], **bound)
    runs: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as learned:
        for number in range(options.rounds):
            for way in chosen(options):
                progress.print(f"round {number + 1} of {options.rounds}: {way.name} …", style="dim")
                sizes = Path(learned, f"{way.name}.json")
                found = measure(way, options, sizes)
                rows.add(kind="way", name=way.name, device=machine["device"], **found)
                runs.setdefault(way.name, []).append(found)
    summary = summarise(runs, bound)
    for name, figures in summary.items():
        rows.add(kind="summary", name=name, device=machine["device"], **figures)
    console.print(table(summary, options, bound, machine))
    return 0


def chosen(options: Options) -> list[Way]:
    """The ways that were named, or the usual ones.

    Raises:
        SystemExit: there is none of that name.
    """
    known = {way.name: way for way in ways(options.clients)}
    if wrong := [name for name in options.ways if name not in known]:
        raise SystemExit(f"no way is called {wrong[0]!r}; there are: {'; '.join(known)}")
    if options.ways:
        return [known[name] for name in options.ways]
    return [way for way in known.values() if way.name != ON_A_CARD]


def measure(way: Way, options: Options, sizes: Path) -> dict[str, float]:
    """Clients per second, seconds until the first one trains, and bytes of memory at the peak, of
    the process and its descendants together, shared pages counted once."""
    command = [sys.executable, str(Path(__file__).with_name("stacked_way.py")), way.name]
    command += [str(options.clients), str(options.data_root), str(sizes)]
    begin = time.time()
    # Importing cluster sets how threads wait, but plain PyTorch is to have its own default.
    waiting = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    env = {name: value for name, value in os.environ.items() if name not in waiting}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    seen = [0.0]
    with watched(process.pid, 0.5, lambda found: seen.append(sum(map(_proportional, found)))):
        printed, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{way.name}: its process failed")
    moments = json.loads(printed)
    times = [t - begin for t in moments["finished"]]
    # Cohorts finish together: clients that finished with the first one do not count.
    later = [t for t in times if t > times[0] + 0.05]
    whole = way.whole or not later
    rate = len(times) / times[-1] if whole else len(later) / (later[-1] - times[0])
    return {"rate": rate, "ready": moments["ready"] - begin, "bytes": max(seen)}


def _proportional(process: Any) -> float:
    try:
        return float(process.memory_full_info().pss)
    except psutil.Error:
        return 0.0


def bound_of(dataset: Dataset) -> dict[str, float]:
    """Clients per second that the cores could train at most, or the GPU."""
    device = default_device()
    return arithmetic_bound(dataset) if device.type == "cpu" else bytes_bound(device)


def bytes_bound(device: torch.device) -> dict[str, float]:
    """Clients per second if only the bytes of the weights took time.

    Each weight is read by the forward and the backward pass, its gradient is written, and Adam
    reads four numbers and writes three, of 4 bytes each.
    """
    way = Way("", alone, Request(cpus=1, gpus=0), 1, on_ray=False)
    model = starting_generator(TRAINING, job(0, way, SAMPLES).run_spec)
    steps = TRAINING.epochs * -(-SAMPLES // TRAINING.batch_size)
    num_bytes = 4 * 10 * sum(p.numel() for p in model.parameters()) * steps
    speed = copy_bandwidth(device)
    return {"bytes_per_client": num_bytes, "bytes_per_second": speed, "rate": speed / num_bytes}


def arithmetic_bound(dataset: Dataset) -> dict[str, float]:
    """Clients per second on all cores if only matrix products took time."""
    way = Way("", alone, Request(cpus=1, gpus=0), 1, on_ray=False)
    with FlopCounterMode(display=False) as counter:
        next(Plainly(dataset.train).run([job(0, way, SAMPLES)], Events()))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    x, w = torch.randn(64, 784), torch.randn(256, 784)
    products: list[Callable[[], object]] = [
        lambda: torch.nn.functional.linear(x, w),
        lambda: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], ""),
    ]
    best = min(seconds_of(product, torch.device("cpu"), repeats=300) for product in products)
    torch.set_num_threads(threads)
    speed = 2 * 64 * 784 * 256 / best
    flops = counter.get_total_flops()
    rate = speed * psutil.cpu_count() / flops
    return {"flops_per_client": flops, "flops_per_second_and_core": speed, "rate": rate}


def summarise(
    runs: dict[str, list[dict[str, float]]], bound: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Medians over rounds, and the ratio to the quicker baseline within each round."""
    both = zip(*(runs[name] for name in BASELINES if name in runs), strict=True)
    baseline = [max(run["rate"] for run in of_round) for of_round in both]
    rows = {}
    for name, of_way in runs.items():
        rates = [run["rate"] for run in of_way]
        ratios = [rate / base for rate, base in zip(rates, baseline or rates, strict=True)]
        rows[name] = {
            "clients_per_second": statistics.median(rates),
            "lowest": min(rates),
            "highest": max(rates),
            "over_one_by_one": statistics.median(ratios),
            "share_of_bound": statistics.median(rates) / bound["rate"],
            "ready_seconds": statistics.median(run["ready"] for run in of_way),
            "peak_bytes": max(run["bytes"] for run in of_way),
        }
    return rows


def table(
    rows: dict[str, dict[str, float]],
    options: Options,
    bound: dict[str, float],
    machine: JsonObject,
) -> Table:
    """The figures, a row for each way."""
    columns = ("clients/s", "lowest to highest", "over one by one", "of the bound")
    shown = Table("way", *columns, "ready after, s", "peak memory, MiB")
    shown.title = (
        f"{options.clients} clients, {SAMPLES} images each, {TRAINING.model}, Adam, batches of "
        f"{TRAINING.batch_size}, {TRAINING.epochs} epochs; {options.rounds} rounds; "
        f"{machine['device']}, {machine['cores']} cores, busy {machine['busy_percent']:.0f} % with "
        f"others' work; {machine['date']}"
    )
    shown.caption = (
        f"bound: {bound['rate']:.0f} clients/s: "
        f"{ {name: f'{figure:.3g}' for name, figure in bound.items()} }"
    )
    for name, row in rows.items():
        shown.add_row(
            name,
            f"{row['clients_per_second']:.1f}",
            f"{row['lowest']:.1f} to {row['highest']:.1f}",
            f"{row['over_one_by_one']:.2f}",
            f"{row['share_of_bound']:.0%}",
            f"{row['ready_seconds']:.1f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
        )
    return shown


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
