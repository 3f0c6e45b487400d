"""What is printed while a run goes on."""

import io

from rich.console import Console

from cluster.run.progress import LiveTable, PlainLines
from fl.events import ClientEnd, Event, Phase, RunStart
from fl.federation import Client
from tests.fl.toy import CLASSIFIER, client

MEMBERS = (client(0, CLASSIFIER), client(1, CLASSIFIER))


def events(members: tuple[Client, ...] = MEMBERS) -> list[Event]:
    """One round whose method maps over its clients twice."""
    told: list[Event] = [RunStart(run="run")]
    for _ in range(2):
        told.append(Phase(phase="local", status="start"))
        told += [
            ClientEnd(client=c.id, role=c.role, model=c.model, num_samples=5, bytes_up=10)
            for c in members
        ]
        told.append(Phase(phase="local", status="end", took=1.0))
    return told


def test_each_map_counts_its_own_clients() -> None:
    out = io.StringIO()
    lines = PlainLines(MEMBERS, Console(file=out, width=200))
    for event in events():
        lines(event)
    assert out.getvalue().count("(1 of 2 clients)") == 2
    assert out.getvalue().count("(2 of 2 clients)") == 2
    assert "3 of 2" not in out.getvalue()


def test_the_live_bar_is_full_after_each_map() -> None:
    table, out = LiveTable(MEMBERS), io.StringIO()
    for event in events():
        table(event)
    Console(file=out, width=200).print(table.render())
    assert "2/2" in out.getvalue()
