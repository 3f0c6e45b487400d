"""The lock of a run's directory, held by the process that runs in it until it ends or dies."""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster.clients.locks import Locks
from fl.errors import UserError

FILE = ".lock"
"""Says who has the directory while it is locked. It stays, since a lock file that is deleted
while others open it would let two of them in."""
LONGEST = 4096


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Holds the lock of an existing directory until the end of the context.

    The kernel drops the lock of a process that dies. On a file system without locks it says so on
    stderr, and goes on.

    Raises:
        UserError: another process has it; the line says which.
        OSError: the lock's file cannot be made.
    """
    file = run_dir / FILE
    locks = Locks(file)
    if not locks.acquire(FILE):
        raise UserError(
            f"{run_dir} is in use by {_holder(file)}; wait for its end, stop it, or "
            "choose another --name"
        )
    if not locks.work:
        print(
            f"onefold: warning: there are no locks where {run_dir} lies, so nothing keeps a second "
            "process out of it: see that there is none",
            file=sys.stderr,
        )
    _write(locks, _about())
    try:
        yield
    finally:
        _write(locks, b"")
        locks.release(FILE)


def _about() -> bytes:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}).encode()


def _write(locks: Locks, content: bytes) -> None:
    """Who has the lock is for people: where it cannot be written, the lock holds all the same."""
    with suppress(OSError):
        os.ftruncate(locks.descriptor, 0)
        os.pwrite(locks.descriptor, content, 0)


def _holder(file: Path) -> str:
    """Who wrote that it has the lock; the file may be empty for a moment, or not be ours."""
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(LONGEST))
        host, since, pid = str(found["host"]), str(found["since"]), int(found["pid"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
    if not (host.isprintable() and since.isprintable() and len(host) + len(since) < 300):
        return "another process"
    return f"process {pid} on {host}, since {since}"
