"""An interrupt stays one, whatever fails because of it."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupt_first() -> Iterator[None]:
    """Raises the interrupt in whose course another error came, and not that error.

    Torch, interrupted while it writes a file, ends the file and complains about its length.

    Raises:
        KeyboardInterrupt: the one that was hidden.
    """
    try:
        yield
    except Exception as error:
        hidden: BaseException | None = error
        while hidden is not None and not isinstance(hidden, KeyboardInterrupt):
            hidden = hidden.__context__
        if hidden is None:
            raise
        raise hidden from None
