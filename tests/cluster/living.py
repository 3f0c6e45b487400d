"""Whether processes are still at work, and ends them.

One that only waits to be noticed by its parent is not at work.
"""

import contextlib
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from tests.waiting import wait_until


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for(process: subprocess.Popen[Any], condition: Callable[[], object]) -> None:
    """Returns once the condition holds, which the process brings about; fails if it ends first."""
    wait_until(lambda: condition() or process.poll() is not None)
    assert condition(), f"it has ended with status {process.returncode}"


def await_end(processes: Sequence[psutil.Process], within: float = 10) -> None:
    """Returns once all have ended, as they are to within so many seconds."""
    wait_until(lambda: not any(alive(p.pid) for p in processes if p.is_running()), within)


def kill_with_family(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for all of it at once, as if the machine had gone."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=30)
