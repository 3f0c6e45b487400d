"""The command line: `python -m fl.data prepare NAME [NAME...] --data-root DIR`."""

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from fl.command import Parser, exit_status
from fl.data.datasets import NAMES
from fl.data.prepare import prepare
from fl.errors import UserError, unknown
from fl.own_process import run_as_command

TIMEOUT_SECONDS = 30  # otherwise a firewall that drops packets would stop the download for ever


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, or 2 for bad input."""

    def command() -> None:
        options = _parser().parse_args(sys.argv[1:] if argv is None else argv)
        fetch(options.command, options.names, options.data_root)

    return exit_status(command)


def _parser() -> Parser:
    parser = Parser(
        prog="onefold data",
        description="Fetches data sets into a folder, where runs find them. A run itself never "
        "downloads.",
    )
    parser.add_argument(
        "command", nargs="?", metavar="prepare", help="fetch what is missing or damaged"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"data sets: {', '.join(NAMES)}")
    parser.add_argument(
        "--data-root",
        type=Path,
        default=Path("data"),
        metavar="DIR",
        help="the folder that holds all data sets, in torchvision's layout; default data",
    )
    return parser


def fetch(command: str | None, names: Sequence[str], data_root: Path) -> None:
    """Fetches what is missing or damaged of these data sets, and says of each what was done.

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


if __name__ == "__main__":
    run_as_command(main)
