"""Runs that stand still at an event, for who kills them there and would else race with them."""

import os
import re
import time
from pathlib import Path

from cluster.hardware.processes import ROOT
from fl.events import Event, Events, as_line

THERE = "there"
"""The file in the folder of :func:`held` from when on the run stands still."""
START = "from tests.held import hold_here\nhold_here({folder!r}, {event!r}, {number})\n"


def held(folder: Path, event: str, number: int = 1) -> dict[str, str]:
    """The environment of a command, one of whose processes stands still once, as soon as it has
    told so many events whose line matches; what else has this environment later goes on.

    ``folder``: is made, for what Python reads first in each of the processes.
    """
    folder.mkdir()
    start = START.format(folder=str(folder), event=event, number=number)
    (folder / "sitecustomize.py").write_text(start)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def hold_here(folder: str, event: str, number: int) -> None:
    """Has this process stand still there, if none has before."""
    emit, told = Events.emit, list[Event]()

    def tell(events: Events, one: Event) -> None:
        emit(events, one)
        if re.search(event, as_line(one)):
            told.append(one)
        if len(told) == number:
            try:
                Path(folder, THERE).open("x").close()
            except FileExistsError:
                return
            while True:
                time.sleep(1)

    Events.emit = tell  # type: ignore[method-assign]
