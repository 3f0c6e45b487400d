"""The distance filter, as runs take it, against its peers: milliseconds a call.

    python benchmarks/distance.py --json FILE

Times, for every shape: the filter of a run, which is ``Server.nearest`` on samples that the server
has, with one rank on all threads, one rank on one thread, and two ranks on one thread each (or one
GPU each, where there are two); the kernel alone, each backend of ``kernels.nearest_to_centroid``;
the released code's procedure (per class scikit-learn's KMeans with one cluster, a norm, topk) on
one thread and on all; a loop of torch.cdist over the classes; flash-kmeans with one cluster where
it is installed (``pip install flash-kmeans``, CUDA only); and two plain reads of the samples,
beside the time that two reads take at the bandwidth measured for a large copy. Labels are shuffled.
Every call gets samples that are not in the cache; on CUDA times include launches and the host's
waiting.
"""

import importlib.util
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import tyro
from machine import Rows, copy_bandwidth, describe_machine, settle
from rich.console import Console
from rich.table import Table
from servers import limited, servers
from torch import Tensor

from fl.events import Events
from fl.federation import RunSpec
from fl.fusion.server import Server
from fl.fusion.synthesis import PIXEL
from fl.json_files import JsonObject
from kernels import nearest_to_centroid
from kernels.backends import TRITON_INSTALLED
from kernels.exact import rounded

SHAPES = (
    (6_000, 784, 10),
    (12_000, 784, 10),
    (6_000, 3072, 10),
    (12_000, 784, 47),
    (96_000, 784, 47),
    (1_000_000, 3072, 100),
)
GPU_ONLY = 1 << 30  # elements: 4 GiB in float32
ROTATION = 1 << 30  # bytes of inputs that are used in turn: many times a cache's size
SLOW = 10.0  # seconds: a procedure that takes longer runs once, without a warm-up
KEEP = 0.8  # of each class's samples
PLACED = 8  # inputs that ranks are given: Ray's object store holds them all

Procedure = Callable[[Tensor, Tensor, int], object]


@dataclass(frozen=True, kw_only=True)
class Distance:
    """Times the filter and its peers for each shape."""

    shapes: tuple[tuple[int, int, int], ...] = SHAPES
    """Samples, features and classes of each."""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """Where the samples are."""
    seconds: float = 2.0
    """How long each procedure is repeated; it runs at least once, and once to warm up."""
    ranks: tuple[int, ...] = ()
    """Numbers of ranks of a run's filter. Default: one, and two on cores or with several GPUs."""
    leave_out: tuple[str, ...] = ()
    """Procedures to leave out, by the beginnings of their names, such as released."""
    json: Path | None = None
    """File that gets a line of JSON for each figure, as soon as it is known."""


@dataclass(frozen=True)
class Times:
    """Milliseconds of a procedure over its repetitions, or why it did not run."""

    median: float | None = None
    low: float | None = None
    """10th percentile."""
    high: float | None = None
    """90th percentile."""
    repetitions: int = 0
    remark: str = ""


def main(options: Distance) -> int:
    """Times all shapes and prints a table for each; returns the exit status."""
    console = Console(width=110)
    machine = describe_machine(options.device)
    console.print(", ".join(f"{k} {v}" for k, v in machine.items()))
    if machine["busy_percent"] > 5:
        console.print("[red]The machine is busy: these figures are not the machine's.[/red]")
    bandwidth = copy_bandwidth(torch.device(options.device))
    console.print(f"copy bandwidth, bytes read and written: {bandwidth / 1e9:.1f} GB/s")
    rows = Rows("distance", options.json)
    rows.add(kind="machine", **machine, copy_bytes_per_second=bandwidth)
    for shape in options.shapes:
        if options.device == "cpu" and shape[0] * shape[1] > GPU_ONLY:
            console.print(f"{name_of(shape)}: skipped, needs a GPU")
            rows.add(kind="skipped", shape=shape)
            continue
        rows.add(kind="shape", **time_shape(shape, bandwidth, options, console, rows))
    return 0


def time_shape(
    shape: tuple[int, int, int],
    bandwidth: float,
    options: Distance,
    console: Console,
    rows: Rows,
) -> JsonObject:
    """Times every procedure for one shape, prints the table, and returns the figures."""
    inputs, labels = draw(shape, options.device)
    times: dict[str, Times] = {}
    for name, own in timed(shape, inputs, labels, options):
        times[name] = own
        rows.add(kind="procedure", shape=shape, name=name, **asdict(own))
    bound = 2 * inputs[0].nbytes / bandwidth * 1e3
    console.print(table_of(shape, times, bound))
    return {"shape": shape, "bytes_bound_ms": bound, "ratios": ratios(times, bound)}


def timed(
    shape: tuple[int, int, int], inputs: list[Tensor], labels: Tensor, options: Distance
) -> Iterator[tuple[str, Times]]:
    """Each procedure that is not left out, as soon as it is timed."""
    if not "run".startswith(options.leave_out):
        yield from time_runs(shape, inputs[:PLACED], labels, options)
    for name, procedure, threads in procedures(options.device):
        if name.startswith(options.leave_out):
            continue
        if isinstance(procedure, str):
            yield name, Times(remark=procedure)
            continue
        with limited(threads):
            yield name, measure(procedure, inputs, labels, shape[2], options)


def time_runs(
    shape: tuple[int, int, int], inputs: list[Tensor], labels: Tensor, options: Distance
) -> Iterator[tuple[str, Times]]:
    """The filter as a run calls it, with each number of ranks."""
    _, num_features, num_classes = shape
    spec = RunSpec.of_images((1, 1, num_features), num_classes=num_classes, seed=0)
    threads = torch.get_num_threads()
    usual = (1, 2) if options.device == "cpu" or torch.cuda.device_count() > 1 else (1,)
    with servers(spec, options.ranks or usual, torch.device(options.device), Events()) as ready:
        for name, server in ready.items():
            procedure = run_of(server, inputs, labels)
            for count in sorted({1, threads}, reverse=True) if server.size == 1 else [1]:
                with limited(count):
                    found = measure(procedure, inputs, labels, num_classes, options)
                yield f"run, {name}, threads: {count}", found


def run_of(server: Server, inputs: list[Tensor], labels: Tensor) -> Procedure:
    """The server's filter, on samples that its ranks have.

    Each input is filtered once before: so the ranks have started, and have touched their samples'
    memory, as they have in a run, where they draw them.
    """
    shape = (-1, *server.run_spec.image_shape)
    placed = {
        samples.data_ptr(): replace(
            server.place({"images": samples.view(shape), "labels": labels}), step=PIXEL
        )
        for samples in inputs
    }
    for block in placed.values():
        server.nearest(block, KEEP)

    def run(samples: Tensor, labels: Tensor, num_classes: int) -> object:
        return server.nearest(placed[samples.data_ptr()], KEEP)

    return run


def draw(shape: tuple[int, int, int], device: str) -> tuple[list[Tensor], Tensor]:
    """Pixels (N, F) in [0, 1], in more copies than fit a cache, and shuffled, balanced labels."""
    num_samples, num_features, num_classes = shape
    stream = torch.Generator(device).manual_seed(0)
    samples = torch.rand(num_samples, num_features, generator=stream, device=device)
    samples = rounded(samples, PIXEL)
    labels = torch.arange(num_samples, device=device) % num_classes
    labels = labels[torch.randperm(num_samples, generator=stream, device=device)]
    copies = -(-ROTATION // samples.nbytes)
    return [samples, *(samples.clone() for _ in range(copies - 1))], labels


def procedures(device: str) -> Iterator[tuple[str, Procedure | str, int]]:
    """Each procedure's name, function (or why there is none) and threads, in the table's order."""
    threads = torch.get_num_threads()
    for backend in ("reference", "torch", "triton"):
        if backend == "triton" and (device == "cpu" or not TRITON_INSTALLED):
            yield "kernel, triton", "needs CUDA and Triton", threads
        else:
            yield f"kernel, {backend}", kernel(backend), threads
    yield "torch.cdist loop", cdist_loop, threads
    if importlib.util.find_spec("flash_kmeans") is None:
        yield "flash-kmeans", "not installed", threads
    elif device == "cpu":
        yield "flash-kmeans", "needs CUDA", threads
    else:
        yield "flash-kmeans", flash_kmeans, threads
    yield "two reads", two_reads, threads
    for count in sorted({1, threads}):
        yield f"released, threads: {count}", released_procedure, count


# What the filter is held against: other ways to keep each class's nearest samples.


def released_procedure(samples: Tensor, labels: Tensor, num_classes: int) -> object:
    """The released code's filter: class by class on the CPU, without its plots and data loader."""
    from sklearn.cluster import KMeans

    samples, labels = samples.cpu(), labels.cpu()
    kept = []
    for c in range(num_classes):
        numbers = (labels == c).nonzero().squeeze(1)
        own = samples[numbers]
        fitted = KMeans(n_clusters=1, random_state=0).fit(own.numpy())
        centre = torch.from_numpy(fitted.cluster_centers_).float()
        distances = torch.norm(own - centre, dim=1)
        kept.append(numbers[distances.topk(int(KEEP * len(own)), largest=False).indices])
    return torch.cat(kept)


def cdist_loop(samples: Tensor, labels: Tensor, num_classes: int) -> object:
    """A loop over the classes on the samples' device."""
    kept = []
    for c in range(num_classes):
        numbers = (labels == c).nonzero().squeeze(1)
        own = samples[numbers]
        distances = torch.cdist(own, own.mean(0, keepdim=True)).squeeze(1)
        kept.append(numbers[distances.topk(int(KEEP * len(own)), largest=False).indices])
    return torch.cat(kept)


def flash_kmeans(samples: Tensor, labels: Tensor, num_classes: int) -> object:
    """flash-kmeans' centre of each class, then norm and topk, which it leaves to its user."""
    from flash_kmeans import batch_kmeans_Euclid  # type: ignore[import-not-found]

    kept = []
    for c in range(num_classes):
        numbers = (labels == c).nonzero().squeeze(1)
        own = samples[numbers]
        centres = batch_kmeans_Euclid(own.unsqueeze(0), n_clusters=1, max_iters=1)[1]
        distances = torch.linalg.vector_norm(own - centres[0], dim=1)
        kept.append(numbers[distances.topk(int(KEEP * len(own)), largest=False).indices])
    return torch.cat(kept)


def two_reads(samples: Tensor, labels: Tensor, num_classes: int) -> object:
    """The least that any procedure must do: read all samples twice."""
    return samples.sum(), samples.sum()


def kernel(backend: str) -> Procedure:
    """The kernel alone, by one backend."""

    def run(samples: Tensor, labels: Tensor, num_classes: int) -> object:
        return nearest_to_centroid(samples, labels, num_classes, KEEP, step=PIXEL, backend=backend)

    return run


def measure(
    procedure: Procedure, inputs: list[Tensor], labels: Tensor, num_classes: int, options: Distance
) -> Times:
    """Repeats a procedure; one that fails is reported with its error."""
    durations: list[float] = []
    turns = itertools.cycle(inputs)
    try:
        warm_up = once(procedure, next(turns), labels, num_classes)
        if warm_up > SLOW:
            ms = 1e3 * warm_up
            return Times(ms, ms, ms, 1, "one run")
        while not durations or sum(durations) + warm_up < options.seconds:
            durations.append(once(procedure, next(turns), labels, num_classes))
    except Exception as error:  # a peer's failure is a result
        return Times(remark=f"failed: {type(error).__name__}: {error}"[:200])
    all_ms = [1e3 * t for t in durations]
    deciles = statistics.quantiles(all_ms, n=10, method="inclusive") if all_ms[1:] else all_ms * 9
    return Times(statistics.median(all_ms), deciles[0], deciles[-1], len(all_ms))


def once(procedure: Procedure, samples: Tensor, labels: Tensor, num_classes: int) -> float:
    """Seconds from an idle device to an idle device."""
    settle(samples.device)
    begin = time.perf_counter()
    procedure(samples, labels, num_classes)
    settle(samples.device)
    return time.perf_counter() - begin


def ratios(times: dict[str, Times], bound: float) -> dict[str, dict[str, float]]:
    """For each procedure: times faster than the released one at its best, times slower than two
    reads, and the share of the copy bandwidth that two reads in its time would need."""
    released = [t.median for n, t in times.items() if n.startswith("released") and t.median]
    reads = times["two reads"].median
    found = {}
    for name, t in times.items():
        if t.median is not None:
            found[name] = {"share_of_copy_bandwidth": bound / t.median}
            if released:
                found[name]["released_over_this"] = min(released) / t.median
            if reads:
                found[name]["this_over_two_reads"] = t.median / reads
    return found


def table_of(shape: tuple[int, int, int], times: dict[str, Times], bound: float) -> Table:
    """The figures of one shape."""
    table = Table(
        *("procedure", "ms", "10 to 90 %", "released / this", "this / two reads", "of copy bw"),
        title=f"{name_of(shape)}: two reads at copy bandwidth {bound:.2f} ms",
        title_justify="left",
    )
    by_name = ratios(times, bound)
    for name, t in times.items():
        if t.median is None:
            table.add_row(name, "", t.remark, "", "", "", style="dim")
            continue
        figures = by_name[name]
        table.add_row(
            *(name, f"{t.median:.2f}", f"{t.low:.2f} to {t.high:.2f}"),
            f"{figures['released_over_this']:.1f}" if "released_over_this" in figures else "",
            f"{figures['this_over_two_reads']:.1f}" if "this_over_two_reads" in figures else "",
            f"{figures['share_of_copy_bandwidth']:.0%}",
        )
    return table


def name_of(shape: tuple[int, int, int]) -> str:
    return f"{shape[0]:,} samples, {shape[1]:,} features, {shape[2]} classes"


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Distance)))
