"""Small commands: a parser, and how they end; whatever is wrong is one line."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from fl.disk_errors import refused_by_disk
from fl.errors import UserError, error_line


class Parser(argparse.ArgumentParser):
    """A parser that raises `UserError` for whatever is wrong, and prints nothing."""

    def error(self, message: str) -> NoReturn:
        """Called with what is wrong."""
        raise UserError(message)


def exit_status(command: Callable[[], object]) -> int:
    """Runs a command to its end; returns 0, or 2 after one line for bad input or files."""
    try:
        with refused_by_disk():
            command()
    except UserError as error:
        print(error_line(error), file=sys.stderr)
        return 2
    return 0
