"""Rehearses a run: all of it once, cut to single steps, and what the whole would take."""

from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from cluster.rehearsal.costs import CLIENTS, PHASES, PREPARATION, Cost, Costs
from cluster.rehearsal.executor import OneOfEachKind
from cluster.rehearsal.server import RehearsalServer
from cluster.rehearsal.shorten import cut, makes_images_once, rounds_to_rehearse, shortened
from cluster.rehearsal.store import NoStore
from cluster.run.options import Launch
from cluster.run.prepare import Prepared
from cluster.run.time_left import about, clients_at_once
from fl.clients import Clients
from fl.events import Events
from fl.json_values import JsonObject
from fl.report.words import size
from fl.rounds import Rounds
from fl.scoring import OwnTests


@dataclass(frozen=True)
class Estimate:
    """What the whole run would take on this machine."""

    costs: dict[str, Cost]
    """By phase."""
    rounds: int
    seconds_per_round: float
    at_once: int
    """Clients that compute at once."""
    gpus: int

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return sum(cost.seconds for cost in self.costs.values())

    @property
    def gpu_hours(self) -> float:
        """Hours for which the run holds GPUs, all that it has, from its begin to its end."""
        return self.seconds / 3600 * self.gpus


def rehearse(launch: Launch, prepared: Prepared) -> Estimate:
    """Runs one step per client, one batch at the server, and a round of each kind.

    Widths, image sizes and batch sizes are the run's own. One client of each role and training runs
    and stands for the others. All happens in this process, and nothing is written.

    Args:
        launch: the run.
        prepared: the same, ready to start.
    """
    run = launch.run
    options, loops = shortened(run.options)
    small = cut(prepared, options, run.seed)
    once = frozenset({PREPARATION} if makes_images_once(options) else set[str]())
    if "fusion" in loops:
        loops["fusion"] *= small.share_samples
    costs = Costs(loops, once)
    events = Events(costs)
    at_once = 1
    if launch.runtime == "ray":
        at_once = clients_at_once(prepared.members, prepared.inventory, launch.max_actors)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    server = RehearsalServer(small, events, device, costs)
    each = prepared.method.told_apart(run.options, len(prepared.members))
    clients = Clients(
        small.members,
        small.train,
        prepared.run_spec,
        OneOfEachKind(small, costs, at_once, each),
        NoStore(),
        events,
        tests=OwnTests.of(small.test, small.dataset.train.labels, small.dataset.num_classes),
    )
    inputs: JsonObject = dict(small.inputs)
    if not prepared.method.one_shot:
        inputs["rounds"] = Rounds(rounds_to_rehearse(options, run.rounds))
    prepared.method.run(clients, server, options, **inputs)
    gpus = len(prepared.inventory.gpus)
    return Estimate(costs.whole(run.rounds), run.rounds, costs.of_round(), at_once, gpus)


def print_estimate(estimate: Estimate, console: Console) -> None:
    """Prints time and memory by phase, of the whole, and per round."""
    table = Table("phase", "time", "memory", box=None, padding=(0, 2, 0, 0))
    for phase, name in PHASES.items():
        cost = estimate.costs[phase]
        peak = size(cost.peak_bytes) if cost.peak_bytes else "unknown"
        if phase == CLIENTS:
            peak += " each"
        table.add_row(name, about(cost.seconds), peak if cost.seconds else "none")
    console.print("rehearsed: every step of the run works. The whole would take, on this machine:")
    console.print(table)
    console.print(f"in all {about(estimate.seconds)}, clients {estimate.at_once} at once, one rank")
    if estimate.rounds > 1:
        console.print(
            f"a round {about(estimate.seconds_per_round)}, {estimate.rounds} rounds",
            highlight=False,
        )
    if estimate.gpus:
        console.print(f"GPUs {estimate.gpus}: {estimate.gpu_hours:.1f} GPU-hours", highlight=False)
