"""``--smoke``: runs every step of a run once, at its real sizes, and estimates the whole.

It is the run with other settings, in a folder that is gone afterwards: one training step for each
client, a few for each fit at the server, and one round.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from cluster.run.options import Launch
from cluster.run.prepare import Prepared
from cluster.run.runner import execute
from cluster.run.runtime import EarlyRay
from fl.events import ClientEnd, Event
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.json_files import JsonObject
from fl.report.words import about, size
from fl.server import FitResult, Samples

STEPS = 6
"""Steps of a fit from which the time of one is taken."""
NOT_OF_SERVER = ("local", "scoring", "total")
"""Parts of a result's seconds in which the server is idle, and their sum."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds that the whole run would take on this machine: of the clients, of which so many train
    ``at_once``, of the server's fits with their tests, and of the rest at the server."""

    clients: float
    fits: float
    rest: float
    client_bytes: int
    """Memory of a client's process: the largest share of main memory, or what was reserved on a
    GPU; 0 where it is unknown."""
    rounds: int
    at_once: int
    gpus: int

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.clients + self.fits + self.rest

    @property
    def gpu_hours(self) -> float:
        """Hours for which the run holds all its GPUs."""
        return self.seconds / 3600 * self.gpus


def smoke(launch: Launch, prepared: Prepared, early: EarlyRay | None = None) -> Estimate:
    """Runs every step of the prepared run once, on its Ray if that was begun ``early``, and
    estimates the whole; leaves no files."""
    heard: list[Event] = []
    small, rounds = _cut(prepared), prepared.run.rounds
    with tempfile.TemporaryDirectory(prefix="onefold-smoke-") as folder, _short_fits() as fits:
        short = replace(launch, output_dir=Path(folder), resume=False, track=())
        quiet = Console(quiet=True)
        result = execute(short, small, Path(folder), quiet, heard.append, early=early, report=False)
    trained = [prepared.members[end.client] for end in heard if isinstance(end, ClientEnd)]
    rates = prepared.requests.rates
    alone = [c.training.work(c.num_samples) * rates[c.model] for c in trained]
    server = sum(s for part, s in result["seconds"].items() if part not in NOT_OF_SERVER)
    most = launch.max_actors if launch.runtime == "ray" else 1
    at_once = prepared.inventory.of_all_at_once([c.request for c in prepared.members], most)
    return Estimate(
        clients=max(0.0, sum(alone) / at_once, *alone) * rounds,
        fits=fits["whole"] * rounds,
        rest=max(0.0, server - fits["short"]) * rounds,
        client_bytes=_client_bytes(prepared, result),
        rounds=rounds,
        at_once=at_once,
        gpus=len(prepared.inventory.gpus),
    )


def _client_bytes(prepared: Prepared, result: JsonObject) -> int:
    if prepared.inventory.gpus:
        return max(entry["peak_bytes"] or 0 for entry in result["placements"])
    # A process holds memory of the trainings before, so its gain in one says little.
    return max(client.request.memory_bytes for client in prepared.members)


def _cut(prepared: Prepared) -> Prepared:
    """One round, trainings of one step, and each client with samples for it."""
    classes, needs = prepared.run_spec.num_classes, [1]

    def brief(value: Any) -> Any:  # every training in a record, itself too, cut to one step
        if not is_dataclass(value) or isinstance(value, type):
            return value
        value = replace(value, **{f.name: brief(getattr(value, f.name)) for f in fields(value)})
        if hasattr(value, "probe"):
            value, needed = value.probe(1, classes)
            needs.append(needed)
        return value

    options = brief(prepared.run.options)
    run = replace(prepared.run, options=options, rounds=1, fid=False)
    cut = [replace(c, training=brief(c.training)) for c in prepared.members]
    train = tuple(own[: max(needs)] for own in prepared.partition.train)
    members = tuple(replace(c, num_samples=len(own)) for c, own in zip(cut, train, strict=True))
    partition = replace(prepared.partition, train=train)
    return replace(prepared, run=run, members=members, partition=partition)


@contextmanager
def _short_fits() -> Iterator[dict[str, float]]:
    """Cuts every fit of a server to a few steps; gives the seconds that these took, ``short``, and
    that the ``whole`` fits would take, which grow with each fit."""
    servers: Any = Server
    fit, seconds = servers.fit, {"short": 0.0, "whole": 0.0}

    def short_fit(
        server: Any, model: Any, data: Any, *, config: FitConfig, tested: bool = True, **more: Any
    ) -> FitResult:
        began, once = time.perf_counter(), replace(config, epochs=1)
        if not isinstance(data, Samples | dict):
            data = data.epoch(1)
            seconds["whole"] += (time.perf_counter() - began) * config.epochs
        rows = server.place(data) if isinstance(data, dict) else data

        def timed(steps: int) -> float:
            few = server.take(rows, torch.arange(min(len(rows), steps * config.batch_size)))
            start = time.perf_counter()
            fit(server, model, few, config=once, tested=False, **more)
            return time.perf_counter() - start

        timed(1)  # the first step is slower, and each fit has costs beside its steps
        short, long = timed(1), timed(STEPS)
        count = min(STEPS, -(-len(rows) // config.batch_size))
        step = (long - short) / (count - 1) if long > short and count > 1 else long / count
        seconds["whole"] += step * config.total_steps(len(rows))
        start, epochs = time.perf_counter(), [server.evaluate(model)] if tested else []
        seconds["whole"] += (time.perf_counter() - start) * -(-config.epochs // config.test_every)
        seconds["short"] += time.perf_counter() - began
        return FitResult(step_losses=[], epochs=epochs)

    servers.fit = short_fit
    try:
        yield seconds
    finally:
        servers.fit = fit


def print_estimate(estimate: Estimate, console: Console) -> None:
    """Prints what the whole run would take, part by part."""
    peak = f"{size(estimate.client_bytes)} each" if estimate.client_bytes else "unknown"
    table = Table("part", "time", "memory", box=None, padding=(0, 2, 0, 0))
    table.add_row("clients", about(estimate.clients), peak)
    table.add_row("server: fits", about(estimate.fits))
    table.add_row("server: rest", about(estimate.rest))
    console.print("every step of the run works; on this machine the whole would take:")
    console.print(table)
    total = f"in all {about(estimate.seconds)}, {estimate.at_once} clients at a time"
    if estimate.rounds > 1:
        total += f", {estimate.rounds} rounds of {about(estimate.seconds / estimate.rounds)}"
    if estimate.gpus:
        total += f", {estimate.gpu_hours:.1f} GPU-hours"
    console.print(total, highlight=False)
