"""What a command does before its run starts, said as each step begins.

Imports neither torch nor anything that does: loading that takes seconds, in which the first step is
on the screen already.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.text import Text

ASKED = {"-h", "--help", "--help-all", "--version"}
"""Arguments that are answered with nothing said before."""


@contextmanager
def loading(arguments: Sequence[str]) -> Iterator[None]:
    """Says that torch is being loaded, by what a command imports inside the context."""
    with Steps(Console(quiet=not ASKED.isdisjoint(arguments))) as say:
        say("loading torch")
        yield


class Steps:
    """Names each step: in place on a terminal, on a line of its own elsewhere."""

    def __init__(self, console: Console, title: str = "") -> None:
        """``title``: what the steps are of, where a command has several of it."""
        self._console, self._title = console, f"{title}: " if title else ""
        self._status = console.status("") if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, what: str) -> None:
        """Says that the step has begun."""
        what = self._title + what
        if self._status:
            self._status.update(Text(f"{what} …"))  # a name in it is no markup
        else:
            self._console.print(f"{what} …", markup=False, highlight=False, soft_wrap=True)
            self._console.file.flush()


def silent(what: str) -> None:
    """Says nothing."""
