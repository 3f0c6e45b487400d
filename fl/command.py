"""Command lines: a function's or a record's arguments, whose errors are one line each.

Tyro prints its errors as boxes and ends the process; no public function returns them instead. (One
of its ``_errors`` module does, which may change in any release.) So the boxes are read, in this
file alone: a title, a message over one or more lines, a rule, and advice that we leave out.
"""

import contextlib
import io
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import tyro

from fl.errors import UserError, error_line, unknown
from fl.whole_files import refused_by_disk

TESTED_WITH = "1.0.17"
"""The version that tests/fl/test_command.py last checked this file with."""

WORDS = (
    (r"Error parsing (--\S+): .*base 10: (.*)", "{0} must be a whole number, got {1}"),
    (
        r"Error parsing (--\S+): .*\bFLOAT could be instantiated from \[(.*)\]",
        "{0} must be a number, got {1}",
    ),
    (r"Missing value for argument '(\S+)'", "{0} needs a value"),
    (r"Unrecognized options: (\S+)", "unknown argument {0!r}: a setting is given as --NAME VALUE"),
    (r"Missing from .*?: ([A-Z]+) ", "{0} is missing; --help says what it may be"),
)
"""Beginnings of tyro's messages, and what we say of each."""


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

    @wraps(function)
    def later(*arguments: object, **named: object) -> Callable[[], None]:
        return partial(function, *arguments, **named)

    return exit_status(lambda: parsed(later, argv, prog, _no_option)())


def parsed(
    form: Any,
    argv: Sequence[str] | None,
    prog: str,
    no_option: Callable[[str], str],
    shown: Callable[[str], str] = str,
    **how: Any,
) -> Any:
    """What ``tyro.cli`` makes of a command line.

    Args:
        form: a record's type or a function.
        argv: the command line; None for the process's own.
        prog: the command, for its help.
        no_option: the line for an option that does not exist, by its name without dashes.
        shown: the help as it is printed, of tyro's.
        how: further arguments of ``tyro.cli``.

    Raises:
        UserError: one line, for whatever is wrong.
        SystemExit: with 0, after printing help.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            return tyro.cli(form, prog=prog, args=argv, **how)
    except SystemExit as stop:
        if not stop.code:
            print(shown(stdout.getvalue()), end="")
            raise
        raise UserError(one_line(stderr.getvalue(), no_option)) from None


def _no_option(name: str) -> str:
    return f"unknown option --{name.replace('_', '-')}; --help lists those there are"


def one_line(box: str, no_option: Callable[[str], str]) -> str:
    """The message of a box, as one line.

    Args:
        box: what tyro printed.
        no_option: the line for an option that does not exist, by its name without dashes.
    """
    title, message = _parts(box)
    if "nrecognized option" in title + message:
        option = re.search(r"--([\w.-]+)", message)
        if option:
            return no_option(option.group(1).replace("-", "_"))
    choice = re.match(r"invalid choice '(.*)' for argument '(\S+)'\. Expected one of (.*)", message)
    if choice:
        return str(unknown(choice[2], choice[1], re.findall(r"'([^']*)'", choice[3])))
    for pattern, words in WORDS:
        if found := re.match(pattern, message):
            return words.format(*found.groups())
    # Errors of our own records name the setting; the type's name that tyro adds helps no user.
    return re.sub(r"^Error parsing ((?!--)[\w.]*: )?", "", message)


def _parts(box: str) -> tuple[str, str]:
    """A box's title and its message, without the frame and the advice below them."""
    inner = [re.sub(r"^[│╭╰]\s?|\s*[│╮╯]$", "", line).strip() for line in box.splitlines()]
    title, body = inner[0] if inner else "", inner[1:]
    if body and _is_rule(body[0]):  # where the terminal can draw no box
        body = body[1:]
    return title, " ".join(itertools.takewhile(lambda line: not _is_rule(line), body))


def _is_rule(line: str) -> bool:
    return set(line) <= set("─- ")
