"""Makespan over its lower bound for mixed clients: ours, first come, and Flower's uniform requests.

    python benchmarks/placement.py --json FILE            # on a simulated clock: seconds
    python benchmarks/placement.py --live --json FILE     # also ten clients on real Ray actors
    python benchmarks/placement.py --crowds 1000 10000 100000 --clients --json FILE

The simulation drives the placement that runs use; only the clock is simulated. All three schedulers
get the same clients, which take the same time under each. The live run takes minutes, most of them
to start processes; its simulation is given the start-up times that it had, and so shows whether
order and overlap of real actors are the simulated ones.
"""

import datetime
import math
import os
import platform
import statistics
import sys
import time
import tracemalloc
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import tyro
from federations import CLIENT_NOISE, MACHINES, MODEL_NOISE, Job, Machine, crowd, federation
from live_placement import run_live
from machine import Rows
from rich.console import Console
from rich.table import Table
from schedulers import SCHEDULERS, Scheduler, ours, simulate

from cluster.scheduling.placement import Slot, lower_bound

Told = TypeVar("Told", bound=Any)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compares schedulers on mixed federations and prints makespan over lower bound."""

    clients: tuple[int, ...] = (10, 50, 200)
    """Sizes of the federation."""
    seeds: int = 20
    """Federations of each size."""
    crowds: tuple[int, ...] = ()
    """Numbers of clients that all wait at once, for which our placement's own time and memory are
    measured."""
    live: bool = False
    """Also run ten clients on Ray actors that sleep, on logical resources."""
    live_seconds: float = 20.0
    """The live run's lower bound, to which its clients' times are scaled."""
    json: Path | None = None
    """File that gets a line of JSON for each figure, as soon as it is known."""


@dataclass(frozen=True)
class Row:
    """Ratios of makespan to lower bound, one per federation, by scheduler."""

    machine: str
    clients: int
    bounds: list[float]
    ratios: dict[str, list[float]]


@dataclass(frozen=True)
class CrowdRow:
    """What the placement takes for each of so many clients."""

    machine: str
    clients: int
    seconds_each: float
    bytes_each: float


@dataclass(frozen=True)
class LiveRow:
    """A live run beside its simulation, in seconds."""

    machine: str
    scheduler: str
    bound: float
    simulated: float
    startup_mean: float
    simulated_with_startup: float
    live: float


def main(options: Options) -> int:
    """Runs everything and prints the tables; returns the exit status."""
    console = Console(width=120)
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    where = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    load = os.getloadavg()[0]
    console.print(f"{when}, on {where}, load {load:.1f}")
    told = Rows("placement", options.json)
    told.add(kind="machine", when=when, where=where, load=load)

    def tell(kind: str, row: Told) -> Told:
        told.add(kind=kind, **asdict(row))
        return row

    rows = [
        tell("ratios", compare(m, clients, options.seeds))
        for m in MACHINES
        for clients in options.clients
    ]
    if rows:
        console.print(ratio_table(rows, options.seeds))
    crowds = [
        tell("crowd", measure_crowd(m, clients)) for m in MACHINES for clients in options.crowds
    ]
    if crowds:
        console.print(crowd_table(crowds))
    # Two live machines are enough, and a laptop can run the processes of their clients.
    alive = MACHINES[:2] if options.live else ()
    live = [tell("live", row) for m in alive for row in live_rows(m, options)]
    if live:
        console.print(live_table(live))
    return 0


def bound_of(machine: Machine, jobs: list[Job]) -> float:
    """Seconds that no placement can undercut, with each client's own request."""
    return lower_bound(machine.bundles, [(job.request, job.seconds) for job in jobs])


def compare(machine: Machine, clients: int, seeds: int) -> Row:
    """Simulates every scheduler on the same federations."""
    federations = [federation(machine, clients, seed) for seed in range(seeds)]
    bounds = [bound_of(machine, jobs) for jobs in federations]
    ratios = {
        name: [
            simulate(scheduler(machine, jobs), jobs) / bound
            for jobs, bound in zip(federations, bounds, strict=True)
        ]
        for name, scheduler in SCHEDULERS.items()
    }
    return Row(machine.name, clients, bounds, ratios)


def measure_crowd(machine: Machine, clients: int) -> CrowdRow:
    """What our placement itself takes of a processor and of memory for so many clients."""
    jobs = crowd(machine, clients, seed=0)
    tracemalloc.start()
    held = ours(machine, jobs)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del held
    begin = time.process_time()
    placement = Timed(ours(machine, jobs))
    placement.seconds = time.process_time() - begin
    simulate(placement, jobs)
    return CrowdRow(machine.name, clients, placement.seconds / clients, size / clients)


class Timed:
    """A scheduler, and the seconds of a processor that its calls took."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.seconds = 0.0

    def start(self) -> tuple[int, Slot] | None:
        """See :class:`schedulers.Scheduler`."""
        begin = time.process_time()
        started = self._scheduler.start()
        self.seconds += time.process_time() - begin
        return started

    def finish(self, client: int, seconds: float | None) -> None:
        """See :class:`schedulers.Scheduler`."""
        begin = time.process_time()
        self._scheduler.finish(client, seconds)
        self.seconds += time.process_time() - begin


def live_rows(machine: Machine, options: Options) -> list[LiveRow]:
    """Runs ten clients live under every scheduler, and simulates the same with their start-up."""
    jobs = federation(machine, 10, seed=0)
    factor = options.live_seconds / bound_of(machine, jobs)
    jobs = [replace(job, seconds=job.seconds * factor) for job in jobs]
    rows = []
    for name, scheduler in SCHEDULERS.items():
        live = run_live(machine, scheduler(machine, jobs), jobs)
        rows.append(
            LiveRow(
                machine=machine.name,
                scheduler=name,
                bound=options.live_seconds,
                simulated=simulate(scheduler(machine, jobs), jobs),
                startup_mean=statistics.mean(live.startup.values()),
                simulated_with_startup=simulate(scheduler(machine, jobs), jobs, live.startup),
                live=live.makespan,
            )
        )
    return rows


def ratio_table(rows: list[Row], seeds: int) -> Table:
    """Mean and worst ratio of each scheduler."""
    title = (
        f"makespan / lower bound on a simulated clock, mean (worst) of {seeds} federations; times "
        f"differ from the scheduler's estimates by {MODEL_NOISE:.0%} per model and "
        f"{CLIENT_NOISE:.0%} per client"
    )
    columns = [*SCHEDULERS, "bound, s", "first come / ours", "uniform / ours"]
    table = Table("machine", "clients", *columns, title=title)
    for row in rows:
        means = {name: statistics.mean(ratios) for name, ratios in row.ratios.items()}
        table.add_row(
            row.machine,
            str(row.clients),
            *(f"{means[name]:.2f} ({max(ratios):.2f})" for name, ratios in row.ratios.items()),
            f"{statistics.mean(row.bounds):.0f}",
            f"{means['first come'] / means['ours']:.2f}",
            f"{means['uniform'] / means['ours']:.2f}",
        )
    return table


def crowd_table(rows: list[CrowdRow]) -> Table:
    """Time and memory by client; the time's growth beside that of the clients' logarithm."""
    title = "our placement's own time, adding clients included, and memory, on a simulated clock"
    columns = ("us a client", "times the first", "log K times the first", "bytes a client")
    table = Table("machine", "clients", *columns, title=title)
    for row in rows:
        first = next(other for other in rows if other.machine == row.machine)
        growth = row.seconds_each / first.seconds_each
        logarithm = math.log(row.clients) / math.log(first.clients)
        figures = (f"{1e6 * row.seconds_each:.0f}", f"{growth:.2f}", f"{logarithm:.2f}")
        table.add_row(row.machine, f"{row.clients:,}", *figures, f"{row.bytes_each:.0f}")
    return table


def live_table(rows: list[LiveRow]) -> Table:
    """Live makespans beside the simulated ones."""
    title = "ten clients on real Ray actors that sleep, on logical resources; seconds"
    columns = ("bound", "simulated", "start-up, mean", "simulated with start-up", "live")
    table = Table("machine", "scheduler", *columns, "live / simulated with start-up", title=title)
    for row in rows:
        figures = (row.bound, row.simulated, row.startup_mean, row.simulated_with_startup, row.live)
        ratio = row.live / row.simulated_with_startup
        table.add_row(
            row.machine, row.scheduler, *(f"{figure:.1f}" for figure in figures), f"{ratio:.2f}"
        )
    return table


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
