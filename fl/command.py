"""Small commands: a function's arguments as a command line, whose errors are one line each."""

import contextlib
import io
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps

import tyro

from fl.errors import UserError, error_line
from fl.tyro_errors import one_line
from fl.whole_files import refused_by_disk


def exit_status(command: Callable[[], object]) -> int:
    """Runs a command to its end; returns 0, or 2 after one line for bad input or files."""
    try:
        with refused_by_disk():
            command()
    except UserError as error:
        print(error_line(error), file=sys.stderr)
        return 2
    return 0


def run_command(function: Callable[..., None], prog: str, argv: Sequence[str] | None = None) -> int:
    """Calls the function with what its command line says; returns the exit status, 2 for bad input.

    Raises:
        SystemExit: with 0, after printing help.
    """
    return exit_status(lambda: _parsed(function, prog, argv)())


def _parsed(
    function: Callable[..., None], prog: str, argv: Sequence[str] | None
) -> Callable[[], None]:
    @wraps(function)
    def later(*arguments: object, **named: object) -> Callable[[], None]:
        return partial(function, *arguments, **named)

    stdout, stderr = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            return tyro.cli(later, prog=prog, args=argv)
    except SystemExit as stop:
        if not stop.code:
            print(stdout.getvalue(), end="")
            raise
        raise UserError(one_line(stderr.getvalue(), _unknown)) from None


def _unknown(name: str) -> str:
    return f"unknown option --{name.replace('_', '-')}; --help lists those there are"
