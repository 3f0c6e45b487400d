"""Whether processes are still at work, and ends them.

One that only waits to be noticed by its parent is not at work.
"""

import contextlib
import signal
import subprocess
from collections.abc import Sequence

import psutil

from tests.waiting import wait_until


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def await_end(processes: Sequence[psutil.Process]) -> None:
    """Returns once all have ended, as they are to within ten seconds."""
    wait_until(lambda: not any(alive(p.pid) for p in processes if p.is_running()), within=10)


def kill_with_family(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for all of it at once, as if the machine had gone."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=30)
