"""Tyro's command-line errors as one line each, read from the boxes that it prints.

Tyro prints its errors and ends the process; no public function returns them instead. (One of its
``_errors`` module does, which may change in any release.) So the boxes are read, in this file
alone: a title, a message over one or more lines, a rule, and advice that we leave out.
"""

import itertools
import re
from collections.abc import Callable

from fl.errors import unknown as unknown_word

TESTED_WITH = "1.0.17"
"""The version that tests/fl/test_tyro_errors.py last checked this file with."""

WORDS = (
    (r"Error parsing (--\S+): .*base 10: (.*)", "{0} must be a whole number, got {1}"),
    (
        r"Error parsing (--\S+): .*\bFLOAT could be instantiated from \[(.*)\]",
        "{0} must be a number, got {1}",
    ),
    (r"Missing value for argument '(\S+)'", "{0} needs a value"),
    (
        r"Unrecognized options: (\S+)",
        "unknown argument {0!r}: a setting is given as --NAME VALUE",
    ),
    (r"Missing from .*?: ([A-Z]+) ", "{0} is missing; --help says what it may be"),
)
"""Beginnings of tyro's messages, and what we say of each."""


def one_line(box: str, unknown: Callable[[str], str]) -> str:
    """The message of a box, as one line.

    Args:
        box: what tyro printed.
        unknown: the line for an option that does not exist, by its name without dashes.
    """
    title, message = _parts(box)
    if "nrecognized option" in title + message:
        option = re.search(r"--([\w.-]+)", message)
        if option:
            return unknown(option.group(1).replace("-", "_"))
    choice = re.match(r"invalid choice '(.*)' for argument '(\S+)'\. Expected one of (.*)", message)
    if choice:
        return str(unknown_word(choice[2], choice[1], re.findall(r"'([^']*)'", choice[3])))
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
