"""What a command says of itself: each step before its run starts, and in a line why it ended early.

Imports neither torch nor anything that does: loading that takes seconds, in which the first step is
on the screen already.
"""

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.text import Text

from fl.errors import ClientFailed, ServerFailed, UserError, error_line
from fl.own_process import say_interrupted
from fl.whole_files import disk_line, is_of_disk

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
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
            print_text(f"{what} …", self._console)
            self._console.file.flush()


def print_text(text: str, console: Console) -> None:
    """Prints text as it is, without wrapping or colours."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def ended(work: Callable[[], int | None], goes_on: str = "the same command goes on") -> int:
    """Does the work, says in a line why it ended early, and returns the command's exit status: 0, 1
    it failed, 2 bad input, 130 Ctrl-C. A client's or the server's own error stands above the line.

    Args:
        work: returns the status, or nothing for 0.
        goes_on: how the command is continued; empty where another process says so.

    Raises:
        OSError: one of something else than files, such as a socket.
    """
    try:
        return work() or 0
    except UserError as error:
        return stop_with(error)
    except (ClientFailed, ServerFailed) as error:
        if error.__cause__:
            traceback.print_exception(error.__cause__)
        print(f"onefold: {error}", *[goes_on] * bool(goes_on), sep="\n", file=sys.stderr)
        return 1
    except OSError as error:
        if not is_of_disk(error):
            raise
        then = f"; then {goes_on}" if goes_on else ""
        print(f"onefold: {disk_line(error)}{then}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if goes_on:
            say_interrupted(f"interrupted; {goes_on}")
        return INTERRUPTED


def stop_with(error: UserError) -> int:
    """Prints the error as one line on stderr; returns the exit status for bad input."""
    print(error_line(error), file=sys.stderr)
    return 2
