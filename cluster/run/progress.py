"""Shows a run's progress: a live table on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from cluster.run.live_table import LiveTable
from cluster.run.plain_lines import PlainLines
from fl.events import Listener
from fl.federation import Client


@contextmanager
def progress(members: tuple[Client, ...], console: Console) -> Iterator[Listener]:
    """A listener that shows the run on the terminal until the context ends."""
    if not console.is_terminal:
        yield PlainLines(members, console)
        return
    live = LiveTable(members)
    with Live(get_renderable=live.render, console=console, refresh_per_second=4):
        yield live
