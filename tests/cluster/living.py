"""Whether processes are still at work: one that only waits to be noticed by its parent is not."""

import time
from collections.abc import Iterable

import psutil


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def all_end(processes: Iterable[psutil.Process], seconds: float) -> bool:
    """Whether all have ended within the time."""
    deadline = time.monotonic() + seconds
    while any(alive(p.pid) for p in processes if p.is_running()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
