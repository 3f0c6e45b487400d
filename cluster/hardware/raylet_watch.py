"""Ends this process with a word of its own if its node's raylet dies.

Ray would end it too, seconds later, from C++ and without a word that means anything to a user.
"""

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator

MESSAGE = (
    "onefold: Ray's process for this node (raylet, {pid}) died, perhaps for want of memory; "
    "--resume continues the run"
)


def die(pid: int) -> None:
    """Says what died and ends the process at once: its files are whole at any moment."""
    print(MESSAGE.format(pid=pid), file=sys.stderr, flush=True)
    os._exit(1)


@contextlib.contextmanager
def watched(pid: int | None, then: Callable[[int], None] = die) -> Iterator[None]:
    """Calls ``then`` if that process ends before the context does; where Linux can tell."""
    process = _opened(pid)
    if pid is None or process is None:
        yield
        return
    over_read, over_write = os.pipe()

    def wait() -> None:
        ready, _, _ = select.select([process, over_read], [], [])
        if over_read not in ready:
            then(pid)

    thread = threading.Thread(target=wait, name="raylet watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(over_write)  # which makes the other end ready
        thread.join()
        os.close(over_read)
        os.close(process)


def _opened(pid: int | None) -> int | None:
    """A file that tells the process's end; None on another system than Linux, or an old one."""
    if pid is None or not hasattr(os, "pidfd_open"):
        return None
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None
