"""The command line: `python -m fl.data prepare NAME [NAME...] --data-root DIR`.

It fetches data sets: the only module of Onefold that ever downloads.
"""

import socket
from http.client import HTTPException
from pathlib import Path
from typing import Annotated

import tyro

from fl.command import run_command
from fl.data.datasets import NAMES, load
from fl.data.files import TORCHVISION, open_split, remove_damaged
from fl.errors import UserError, reason_of, unknown
from fl.own_process import run_as_command

SETS = tyro.conf.arg(metavar="NAME", help=f"Data sets: {', '.join(NAMES)}.")
TIMEOUT_SECONDS = 30  # otherwise a firewall that drops packets would stop the download for ever


def fetch(
    command: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="prepare")] = None,
    names: Annotated[tuple[str, ...], tyro.conf.Positional, SETS] = (),
    data_root: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("data"),
) -> None:
    """Fetch data sets into a folder, where runs find them. A run itself never downloads.

    Args:
        command: Fetch what is missing or damaged.
        names: Of data sets.
        data_root: The folder that holds all data sets, in torchvision's layout.

    Raises:
        UserError: another command, no name, or a data set that cannot be fetched.
    """
    if command is None:
        raise UserError("say what to fetch: onefold data prepare NAME [NAME ...]")
    if command != "prepare":
        raise unknown("command", command, ["prepare"])
    if not names:
        raise UserError(f"no data set named; valid: {', '.join(sorted(NAMES))}")
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    for name in names:
        print(prepare(name, data_root), flush=True)


def prepare(name: str, data_root: Path) -> str:
    """Makes data set `name` ready under `data_root`; returns one line on what was done.

    Downloads only where files are missing or damaged. Raises UserError for an unknown name, and
    where the files cannot be fetched, written or read.
    """
    if name == "digits":
        return "digits: comes with Onefold, nothing to fetch"
    try:
        load(name, data_root)
        return f"{name}: already whole in {data_root}, nothing to fetch"
    except UserError:
        if name not in TORCHVISION:
            raise
    _download(name, data_root)
    load(name, data_root)
    return f"{name}: fetched into {data_root}"


def _download(name: str, data_root: Path) -> None:
    try:
        remove_damaged(name, data_root)
        for train in (True, False):
            open_split(name, data_root, train=train, download=True)
    except (OSError, HTTPException, RuntimeError) as error:
        raise UserError(f"{name}: cannot fetch it into {data_root}: {reason_of(error)}") from error


if __name__ == "__main__":
    run_as_command(lambda: run_command(fetch, "onefold data"))
