"""``--smoke``: runs every step of a run once, at its real sizes, and estimates the whole.

The executor and server are those of the run: each client takes one training step, each fit at the
server a few, a run of many rounds two. All files go to a temporary directory, with its own store.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from cluster.hardware.inventory import Inventory
from cluster.run.early_ray import EarlyRay
from cluster.run.options import Launch
from cluster.run.prepare import Prepared
from cluster.run.runner import open_federation
from cluster.run.runtime import open_cluster
from fl.events import ClientEnd, Event, Events
from fl.federation import Batch, Client, Training
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.json_files import JsonObject
from fl.report.words import size
from fl.rounds import Rounds
from fl.server import Evaluation, FitResult, Lessons, Samples

STEPS = 6
"""Steps of a fit from which the time of one is taken."""
TESTED = 256
"""Test samples, of all or of each client, that are evaluated."""


@dataclass
class Timed:
    """Seconds of a smoke run, and what the whole run would take in their place."""

    smoke: float = 0.0
    whole: float = 0.0

    def add(self, smoke: float, whole: float) -> None:
        """Adds seconds of this run and of the whole one."""
        self.smoke, self.whole = self.smoke + smoke, self.whole + whole

    @contextmanager
    def times(self, factor: float) -> Iterator[None]:
        """The block would run ``factor`` times as long in the whole run."""
        began = time.perf_counter()
        yield
        took = time.perf_counter() - began
        self.add(took, took * factor)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the whole run would take on this machine."""

    clients: float
    """Seconds of the clients' training."""
    fits: float
    """Seconds of the fits at the server, with the tests between their epochs."""
    rest: float
    """Seconds of everything else at the server."""
    client_bytes: int
    """Peak memory of a client; 0 where it is unknown."""
    rounds: int
    at_once: int
    """Clients that train at the same time."""
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
    """Runs every step of the run once and estimates the whole; leaves no files.

    Args:
        launch: the run.
        prepared: the same, ready to start.
        early: its Ray, where that was begun.
    """
    ends: list[ClientEnd] = []

    def listen(event: Event) -> None:
        if isinstance(event, ClientEnd):
            ends.append(event)

    options, small = _one_step(launch.run.options, prepared)
    rounds = min(launch.run.rounds, 2)
    with tempfile.TemporaryDirectory(prefix="onefold-smoke-") as folder, ExitStack() as stack:
        here = Path(folder)
        short = replace(launch, output_dir=here, resume=False)
        events = Events(listen)
        bundles = stack.enter_context(open_cluster(short, prepared.inventory, here, early))
        clients, server = open_federation(short, small, here, events, bundles, stack)
        timed = _shorten_fits(server, len(prepared.dataset.test.labels))
        inputs: JsonObject = dict(small.inputs)
        if not prepared.method.one_shot:
            inputs["rounds"] = Rounds(rounds, here / "rounds")
        small.method.run(clients, server, options, **inputs)
        phases = sum(s for name, s in events.phase_seconds.items() if name not in OF_CLIENTS)
    at_once = 1
    if launch.runtime == "ray":
        at_once = clients_at_once(prepared.members, prepared.inventory, launch.max_actors)
    factor = launch.run.rounds / rounds
    return Estimate(
        clients=_training_seconds(prepared, ends, at_once) * factor,
        fits=timed.whole * factor,
        rest=max(0.0, phases - timed.smoke) * factor,
        client_bytes=max((end.peak_bytes or 0 for end in ends), default=0),
        rounds=launch.run.rounds,
        at_once=at_once,
        gpus=len(prepared.inventory.gpus),
    )


OF_CLIENTS = ("local", "scoring")
"""Phases in which the server waits for clients."""


def _one_step(options: Any, prepared: Prepared) -> tuple[Any, Prepared]:
    """The method's settings with trainings of one step, and each client with samples for it."""
    classes = prepared.run_spec.num_classes
    probes = [training.probe(1, classes)[1] for training in _trainings(options)]
    train, members = [], []
    for client, own in zip(prepared.members, prepared.partition.train, strict=True):
        training, needed = client.training.probe(1, classes)
        kept = own[: max(1, needed, *probes)]
        train.append(kept)
        members.append(replace(client, training=training, num_samples=len(kept)))
    test = tuple(own[:TESTED] for own in prepared.partition.test)
    dataset = prepared.dataset
    few = np.arange(min(TESTED, len(dataset.test.labels)))
    return _brief(options, classes), replace(
        prepared,
        members=tuple(members),
        partition=replace(prepared.partition, train=tuple(train), test=test),
        dataset=replace(dataset, test=dataset.test.take(few)),
    )


def _trainings(options: Any) -> Iterator[Training]:
    """The training records in a method's settings, at any depth."""
    if hasattr(options, "probe"):
        yield options
    for value in (getattr(options, field.name) for field in fields(options)):
        if is_dataclass(value) and not isinstance(value, type):
            yield from _trainings(value)


def _brief(options: Any, classes: int) -> Any:
    """The settings with every training record cut to one step."""
    changed = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value) and not isinstance(value, type):
            changed[field.name] = _brief(value, classes)
    options = replace(options, **changed) if changed else options
    return options.probe(1, classes)[0] if hasattr(options, "probe") else options


def _shorten_fits(server: Server, num_test: int) -> Timed:
    """Cuts every fit of the server to a few steps; returns what the whole fits would take."""
    fit, timed = server.fit, Timed()

    def short_fit(
        model: nn.Module,
        data: Samples | Batch | Lessons,
        *,
        config: FitConfig,
        tested: bool = True,
        **others: Any,
    ) -> FitResult:
        if not isinstance(data, Samples | dict):
            with timed.times(config.epochs):
                data = data.epoch(1)
        whole = server.place(data) if isinstance(data, dict) else data
        once = replace(config, epochs=1)

        def seconds(steps: int) -> float:
            few = server.take(whole, torch.arange(min(len(whole), steps * config.batch_size)))
            began = time.perf_counter()
            fit(model, few, config=once, tested=False, **others)
            return time.perf_counter() - began

        # The first step is slower, and each fit has costs beside its steps.
        first, short, long = seconds(1), seconds(1), seconds(STEPS)
        more = min(STEPS, -(-len(whole) // config.batch_size)) - 1
        step = (long - short) / more if more and long > short else long / (more + 1)
        timed.add(first + short + long, step * config.total_steps(len(whole)))
        if not tested:
            return FitResult(step_losses=[], epochs=[])
        tests = -(-config.epochs // config.test_every)
        with timed.times(tests * num_test / min(num_test, TESTED)):
            found: Evaluation = server.evaluate(model)
        return FitResult(step_losses=[], epochs=[found])

    server.fit = short_fit  # type: ignore[method-assign]
    return timed


def _training_seconds(prepared: Prepared, ends: list[ClientEnd], at_once: int) -> float:
    """Seconds for which the clients whose steps ended would train, by their measured rates."""
    seconds = [_expected(prepared.members[end.client], end, prepared) for end in ends]
    return max(sum(seconds) / at_once, *seconds) if seconds else 0.0


def _expected(client: Client, end: ClientEnd, prepared: Prepared) -> float:
    """Seconds of the client's whole training; of a model without a rate, by its one step."""
    rate = prepared.rates.get(client.model)
    if rate is None:
        step, _ = client.training.probe(1, prepared.run_spec.num_classes)
        rate = end.seconds_training / max(1, step.work(end.num_samples or 1))
    return client.training.work(client.num_samples) * rate


def print_estimate(estimate: Estimate, console: Console) -> None:
    """Prints what the whole run would take, part by part."""
    table = Table("part", "time", "memory", box=None, padding=(0, 2, 0, 0))
    peak = f"{size(estimate.client_bytes)} each" if estimate.client_bytes else "unknown"
    table.add_row("clients", about(estimate.clients), peak)
    table.add_row("server: fits", about(estimate.fits))
    table.add_row("server: rest", about(estimate.rest))
    console.print("every step of the run works; on this machine the whole would take:")
    console.print(table)
    total = f"in all {about(estimate.seconds)}, {estimate.at_once} clients at a time"
    if estimate.rounds > 1:
        each = about(estimate.seconds / estimate.rounds)
        total += f", {estimate.rounds} rounds of {each}"
    if estimate.gpus:
        total += f", {estimate.gpu_hours:.1f} GPU-hours"
    console.print(total, highlight=False)


def clients_at_once(
    members: tuple[Client, ...], inventory: Inventory, most: int | None = None
) -> int:
    """How many of the clients compute at once, if all ask for as much as they do on the mean."""
    cpus = fmean(c.request.cpus for c in members)
    gpus = fmean(c.request.gpus for c in members)
    memory = fmean(c.request.memory_bytes for c in members)
    room = [len(members), most or len(members), inventory.cpus / cpus]
    if gpus and inventory.gpus:
        room.append(len(inventory.gpus) / gpus)
    if memory and inventory.memory_bytes:
        room.append(inventory.memory_bytes / memory)
    return max(1, int(min(room)))


def about(seconds: float) -> str:
    """A duration as people say it.

    >>> about(38), about(301), about(9000)
    ('about 40 s', 'about 5 min', 'about 2.5 h')
    """
    if seconds < 90:
        return f"about {max(1, round(seconds)) if seconds < 10 else 5 * round(seconds / 5)} s"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"
