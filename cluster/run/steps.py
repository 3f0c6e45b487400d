"""What a command does before its run starts, said as each step begins.

Imports neither torch nor anything that does: loading that takes seconds, in which the first step is
on the screen already.
"""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.text import Text


class Steps:
    """Names each step: in place on a terminal, on a line of its own elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, what: str) -> None:
        """Says that the step has begun."""
        if self._status:
            self._status.update(Text(f"{what} …"))  # a name in it is no markup
        else:
            self._console.print(f"{what} …", markup=False, highlight=False, soft_wrap=True)
            self._console.file.flush()


def silent(what: str) -> None:
    """Says nothing."""
