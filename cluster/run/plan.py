"""The placement plan as a table: what each client trains, on which share of the machine."""

import sys
from collections import Counter
from collections.abc import Mapping

import yaml
from rich.console import Console
from rich.table import Table

from cluster.run.options import Launch
from cluster.run.prepare import Prepared
from cluster.run.progress import LISTED
from cluster.run.run_dir import locate, nested
from fl.federation import Client
from fl.report.words import size


def print_dry_run(launch: Launch, prepared: Prepared, console: Console) -> None:
    """Prints the whole configuration, the placement plan, and where the run would be."""
    console.print(yaml.safe_dump(nested(launch.run), sort_keys=False), highlight=False)
    print_plan(prepared, console)
    console.print(f"would run in {locate(launch)}", soft_wrap=True)


def print_plan(prepared: Prepared, console: Console) -> None:
    """Prints what there is, what each client asks for, and how many run at once."""
    inventory = prepared.inventory
    gpus = Counter(gpu.name for gpu in inventory.gpus)
    named = ", ".join(f"{count} x {name}" for name, count in gpus.items())
    limited = inventory.memory_bytes < sys.maxsize
    memory = f"{size(inventory.memory_bytes)} of memory" if limited else "the partition's memory"
    console.print(
        f"\nplacement on {inventory.node} ({inventory.source}): {inventory.cpus} cores, "
        f"{memory}, {named or 'no GPUs'}\n"
        f"partition {prepared.partition.digest}"
    )
    headings = ("client", "role", "model", "samples", "cores", "GPU", "memory", "at once")
    # Narrow enough for 80 columns: names must not be cut.
    table = Table(*headings, "expected", box=None, padding=(0, 1, 0, 0))
    each = len(prepared.members) <= LISTED
    kinds = {(c.role, c.model, _width(c)): c for c in prepared.members}
    widths = Counter(model for model, _ in {kind[1:] for kind in kinds})
    shown = prepared.members if each else kinds.values()
    for client in shown:
        request = inventory.scaled(client.request)
        table.add_row(
            str(client.id) if each else "…",
            client.role,
            client.model if widths[client.model] == 1 else f"{client.model} {_width(client):g}",
            str(client.num_samples),
            f"{request.cpus:g}",
            f"{request.gpus:g}" if inventory.gpus else "none",
            size(request.memory_bytes) if request.memory_bytes else "no limit",
            str(inventory.at_once(client.request)),
            _expected(client, prepared.rates),
        )
    console.print(table)


def _width(client: Client) -> float:
    return getattr(client.training, "width", 1.0)


def _expected(client: Client, rates: Mapping[str, float]) -> str:
    if client.model not in rates:
        return "unknown"
    return f"{client.training.work(client.num_samples) * rates[client.model]:.1f} s"
