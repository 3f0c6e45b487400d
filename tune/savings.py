"""How many clients a sweep did not train, and what that saved."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.hardware.inventory import Inventory
from fl.federation import Client
from tune.rows import TrialRow


@dataclass(frozen=True, kw_only=True)
class Savings:
    """Over all trials of a sweep, the default among them."""

    trained: int
    """Clients that were trained."""
    reused: int
    """Clients that a trial had from the store instead."""
    trained_seconds: float
    """Of training, added up over clients."""
    saved_seconds: float
    """The same of those that were reused, as long as their training had taken."""
    least_seconds_saved: float
    """Of the machine's time, had it been full of clients all the while: at least this long the
    sweep would have taken more."""


def savings(rows: Sequence[TrialRow], members: Iterable[Client], inventory: Inventory) -> Savings:
    """Adds up what the trials' events say."""
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
