"""How many clients compute at once, and durations as people say them."""

from statistics import fmean

from cluster.hardware.inventory import Inventory
from fl.federation import Client


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
