"""Command lines of a few arguments, whose errors are one line like all others."""

import argparse
from typing import NoReturn

from fl.errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser that raises `UserError` for whatever is wrong, and prints nothing."""

    def error(self, message: str) -> NoReturn:
        """Called with what is wrong."""
        raise UserError(message)
