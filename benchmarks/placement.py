"""Makespan over its lower bound for mixed clients: ours, first come, and Flower's uniform requests.

    python benchmarks/placement.py --json FILE            # on a simulated clock: seconds
    python benchmarks/placement.py --live --json FILE     # also ten clients on real Ray actors
    python benchmarks/placement.py --crowds 1000 10000 100000 --clients --json FILE
    python benchmarks/placement.py --waves 1000 10000 --clients --json FILE

The simulation drives the placement that runs use; only the clock is simulated. All three schedulers
get the same clients, which take the same time under each. The live run takes minutes, most of them
to start processes; its simulation is given the start-up times that it had, and so shows whether
order and overlap of real actors are the simulated ones.
"""

import heapq
import math
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from federations import (
    CLASSES,
    CLIENT_NOISE,
    MACHINES,
    MODEL_NOISE,
    Job,
    Machine,
    crowd,
    federation,
)
from machine import Rows, describe_machine
from rich.console import Console
from rich.table import Table
from schedulers import SCHEDULERS, Scheduler, ours, simulate

from cluster.hardware.private_ray import private_ray
from cluster.scheduling.capacity import Slot, lower_bound
from fl.data.partition import dirichlet_lists
from fl.json_files import JsonObject
from fl.training.slots import SLOTS

ALPHAS, BATCH = (0.1, 0.5, 100.0), 16
"""Of the clients in slots."""


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
    waves: tuple[int, ...] = ()
    """Numbers of small clients that train in slots, of which the steps of waves are counted beside
    those of slots that take a new client when one is done."""
    live: bool = False
    """Also run ten clients on Ray actors that sleep, on logical resources."""
    live_seconds: float = 20.0
    """The live run's lower bound, to which its clients' times are scaled."""
    json: Path | None = None
    """File that gets a line of JSON for each figure, as soon as it is known."""


def main(options: Options) -> int:
    """Runs everything and prints the tables; returns the exit status."""
    console = Console(width=120)
    machine, told = describe_machine("cpu"), Rows("placement", options.json)
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    told.add(kind="machine", **machine)

    for kind, rows, table in found(options):
        known: list[JsonObject] = []
        for row in rows:
            told.add(kind=kind, **row)
            known.append(row)
        if known:
            console.print(table(known))
    return 0


def found(
    options: Options,
) -> Iterator[tuple[str, Iterator[JsonObject], Callable[[list[JsonObject]], Table]]]:
    """Each kind of rows, with what makes a table of them."""
    sizes, crowds, seeds = options.clients, options.crowds, options.seeds
    ratios = (compare(machine, clients, seeds) for machine in MACHINES for clients in sizes)
    yield "ratios", ratios, partial(ratio_table, seeds=seeds)
    own = (measure_crowd(machine, clients) for machine in MACHINES for clients in crowds)
    yield "crowd", own, crowd_table
    in_slots = (steps_in_slots(clients, alpha) for clients in options.waves for alpha in ALPHAS)
    yield "waves", in_slots, wave_table
    # Two live machines are enough, and a laptop can run the processes of their clients.
    alive = MACHINES[:2] if options.live else ()
    yield "live", (row for machine in alive for row in live_rows(machine, options)), live_table


def bound_of(machine: Machine, jobs: list[Job]) -> float:
    """Seconds that no placement can undercut, with each client's own request."""
    return lower_bound(machine.bundles, [(job.request, job.seconds) for job in jobs])


def compare(machine: Machine, clients: int, seeds: int) -> JsonObject:
    """Every scheduler on the same federations: by scheduler the ratios of makespan to lower bound,
    one per federation; and those bounds in seconds."""
    federations = [federation(machine, clients, seed) for seed in range(seeds)]
    bounds = [bound_of(machine, jobs) for jobs in federations]
    ratios = {
        name: [
            simulate(scheduler(machine, jobs), jobs) / bound
            for jobs, bound in zip(federations, bounds, strict=True)
        ]
        for name, scheduler in SCHEDULERS.items()
    }
    return {"machine": machine.name, "clients": clients, "bounds": bounds, "ratios": ratios}


def measure_crowd(machine: Machine, clients: int) -> JsonObject:
    """What our placement itself takes of a processor and of memory for each of so many clients."""
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
    each = {"seconds_each": placement.seconds / clients, "bytes_each": size / clients}
    return {"machine": machine.name, "clients": clients, **each}


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


def steps_in_slots(clients: int, alpha: float) -> JsonObject:
    """The steps of an epoch of MNIST's 60,000 images, dealt by Dir(alpha), in 256 slots: wave after
    wave, the clients with the most steps first, as runs do; with a new client in each slot whose
    client is done, the longest first; and the least that slots allow."""
    labels = np.arange(60_000) % CLASSES
    rng = np.random.default_rng(0)
    lists = dirichlet_lists(labels, clients, CLASSES, alpha=alpha, min_samples=1, rng=rng)
    steps = sorted((-(-len(own) // BATCH) for own in lists), reverse=True)
    slots = [0] * SLOTS
    for own in steps:
        heapq.heapreplace(slots, slots[0] + own)
    return {
        "clients": clients,
        "alpha": alpha,
        "waves": sum(steps[::SLOTS]),
        "refilled": max(slots),
        "least": max(steps[0], math.ceil(sum(steps) / SLOTS)),
    }


@dataclass(frozen=True)
class Live:
    """Measured wall time, in seconds."""

    makespan: float
    startup: dict[int, float]
    """By client: from its placement to the first line of its task, process start included."""


class Sleeper:
    """A client's process."""

    def run(self, seconds: float) -> float:
        """Sleeps; returns when it began, by the machine's clock."""
        began = time.time()
        time.sleep(seconds)
        return began


def run_live(machine: Machine, scheduler: Scheduler, jobs: Sequence[Job]) -> Live:
    """An actor per client with its request as logical resources, ended when it is done."""
    import ray

    (bundle,) = machine.bundles
    by_client = {job.client: job for job in jobs}
    running: dict[Any, tuple[int, Any, float]] = {}
    startup: dict[int, float] = {}
    with private_ray(bundle):
        begin = time.time()
        while True:
            while started := scheduler.start():
                job = by_client[started[0]]
                options = {"num_cpus": job.request.cpus, "num_gpus": job.request.gpus}
                actor = ray.remote(Sleeper).options(**options).remote()
                running[actor.run.remote(job.seconds)] = (job.client, actor, time.time())
            if not running:
                return Live(time.time() - begin, startup)
            (done,), _ = ray.wait(list(running), num_returns=1)
            client, actor, placed = running.pop(done)
            startup[client] = ray.get(done) - placed
            ray.kill(actor)
            scheduler.finish(client, by_client[client].seconds)


def live_rows(machine: Machine, options: Options) -> Iterator[JsonObject]:
    """Ten clients live under every scheduler, beside their simulation with and without start-up:
    all in seconds."""
    jobs = federation(machine, 10, seed=0)
    factor = options.live_seconds / bound_of(machine, jobs)
    jobs = [replace(job, seconds=job.seconds * factor) for job in jobs]
    for name, scheduler in SCHEDULERS.items():
        live = run_live(machine, scheduler(machine, jobs), jobs)
        yield {
            "machine": machine.name,
            "scheduler": name,
            "bound": options.live_seconds,
            "simulated": simulate(scheduler(machine, jobs), jobs),
            "startup_mean": statistics.mean(live.startup.values()),
            "simulated_with_startup": simulate(scheduler(machine, jobs), jobs, live.startup),
            "live": live.makespan,
        }


def ratio_table(rows: list[JsonObject], seeds: int) -> Table:
    """Mean and worst ratio of each scheduler."""
    title = (
        f"makespan / lower bound on a simulated clock, mean (worst) of {seeds} federations; times "
        f"differ from the scheduler's estimates by {MODEL_NOISE:.0%} per model and "
        f"{CLIENT_NOISE:.0%} per client"
    )
    columns = [*SCHEDULERS, "bound, s", "first come / ours", "uniform / ours"]
    table = Table("machine", "clients", *columns, title=title)
    for row in rows:
        means = {name: statistics.mean(ratios) for name, ratios in row["ratios"].items()}
        table.add_row(
            row["machine"],
            str(row["clients"]),
            *(f"{means[name]:.2f} ({max(ratios):.2f})" for name, ratios in row["ratios"].items()),
            f"{statistics.mean(row['bounds']):.0f}",
            f"{means['first come'] / means['ours']:.2f}",
            f"{means['uniform'] / means['ours']:.2f}",
        )
    return table


def crowd_table(rows: list[JsonObject]) -> Table:
    """Time and memory by client; the time's growth beside that of the clients' logarithm."""
    title = "our placement's own time, adding clients included, and memory, on a simulated clock"
    columns = ("us a client", "times the first", "log K times the first", "bytes a client")
    table = Table("machine", "clients", *columns, title=title)
    for row in rows:
        first = next(other for other in rows if other["machine"] == row["machine"])
        growth = row["seconds_each"] / first["seconds_each"]
        logarithm = math.log(row["clients"]) / math.log(first["clients"])
        figures = (f"{1e6 * row['seconds_each']:.0f}", f"{growth:.2f}", f"{logarithm:.2f}")
        bytes_each = f"{row['bytes_each']:.0f}"
        table.add_row(row["machine"], f"{row['clients']:,}", *figures, bytes_each)
    return table


def wave_table(rows: list[JsonObject]) -> Table:
    """Steps of waves beside those of slots that are refilled."""
    title = f"steps of an epoch in {SLOTS} slots, batches of {BATCH} of 60,000 images by Dir(alpha)"
    columns = ("waves", "refilled", "least", "waves / refilled")
    table = Table("clients", "alpha", *columns, title=title)
    for row in rows:
        clients, *figures = row.values()
        ratio = f"{row['waves'] / row['refilled']:.2f}"
        table.add_row(f"{clients:,}", *map(str, figures), ratio)
    return table


def live_table(rows: list[JsonObject]) -> Table:
    """Live makespans beside the simulated ones."""
    title = "ten clients on real Ray actors that sleep, on logical resources; seconds"
    columns = ("bound", "simulated", "start-up, mean", "simulated with start-up", "live")
    table = Table("machine", "scheduler", *columns, "live / simulated with start-up", title=title)
    for row in rows:
        machine, scheduler, *figures = row.values()
        ratio = row["live"] / row["simulated_with_startup"]
        table.add_row(machine, scheduler, *(f"{s:.1f}" for s in figures), f"{ratio:.2f}")
    return table


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
