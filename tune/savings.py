"""How many clients a sweep reused instead of training them, and the time that this saved."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.hardware.inventory import Inventory
from fl.federation import Client
from tune.rows import TrialRow


@dataclass(frozen=True, kw_only=True)
class Savings:
    """Sums over all trials of a sweep, the default among them."""

    trained: int
    """Clients that were trained."""
    reused: int
    """Clients that a trial had from the store instead."""
    trained_seconds: float
    """Seconds of training, summed over the clients that were trained."""
    saved_seconds: float
    """Seconds that the training of the reused clients had taken."""
    least_seconds_saved: float
    """Wall time saved if the machine had been full of clients all the time: without reuse the sweep
    would have taken at least so much longer."""


def savings(rows: Sequence[TrialRow], members: Iterable[Client], inventory: Inventory) -> Savings:
    """Sums the trials' trained and reused clients."""
    at_once = {c.id: max(1, inventory.at_once(c.request)) for c in members}
    saved = [(client, s) for row in rows for client, s in row.reused.items()]
    trained = [s for row in rows for s in row.trained.values()]
    return Savings(
        trained=len(trained),
        reused=len(saved),
        trained_seconds=round(sum(trained), 3),
        saved_seconds=round(sum(seconds for _, seconds in saved), 3),
        least_seconds_saved=round(sum(s / at_once[client] for client, s in saved), 3),
    )
