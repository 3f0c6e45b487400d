"""The command line: `python -m fl.data prepare NAME [NAME...] --data-root DIR`."""

import socket
import sys
from pathlib import Path
from typing import Annotated

import tyro

from fl.command import run_command
from fl.data.datasets import NAMES
from fl.data.prepare import prepare
from fl.errors import UserError, unknown

TIMEOUT_SECONDS = 30  # otherwise a firewall that drops packets would stop the download for ever
NAMES_HELP = f"data sets to make ready: {', '.join(NAMES)}"


def main(
    command: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="prepare")],
    names: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="NAME [NAME ...]", help=NAMES_HELP, help_behavior_hint="(required)"),
    ],
    data_root: Path = Path("data"),
) -> None:
    """Fetches data sets into a folder, where runs find them. A run itself never downloads.

    Args:
        command: fetch what is missing or damaged.
        names: see NAMES_HELP.
        data_root: the folder that holds all data sets, in torchvision's layout.
    """
    if command != "prepare":
        raise unknown("command", command, ["prepare"])
    if not names:
        raise UserError(f"no data set named; valid: {', '.join(sorted(NAMES))}")
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    for name in names:
        print(prepare(name, data_root), flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m fl.data"))
