"""Starts child processes, and ends all descendants of this process by id, and nothing else."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import psutil

from cluster.hardware.fork_worker import SET_PARENT_DEATH_SIGNAL

ROOT = Path(__file__).resolve().parents[2]
"""The folder that Onefold's packages are in."""
GRACE_S = 8.0
"""Seconds between SIGTERM and SIGKILL. Slurm itself kills after half a minute."""
SET_CHILD_SUBREAPER = 36
"""Option of Linux's prctl."""
OF_TERMINALS = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}
"""What a terminal sends to a command and to all that it has started."""


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Sets an environment variable for this process and what it starts, until the context ends."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def python(module: str) -> list[str]:
    """The command that runs a module of ours with this Python, wherever it starts.

    Its environment must be :func:`environment`, in a checkout that is not installed.
    """
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """This process's environment, in which Python also finds a checkout that is not installed."""
    before = os.environ.get("PYTHONPATH")
    if str(ROOT) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)  # found anyway; and in front it would hide Python's own modules
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), before]))}


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants when their own parent has ended."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    command: Sequence[str], output: IO[bytes] | None, ignoring: Sequence[signal.Signals] = ()
) -> subprocess.Popen[bytes]:
    """Starts a child that dies with this process, and ignores the signals ``ignoring``.

    ``output``: where both its streams go; None for this process's own.
    """

    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def before_exec() -> None:
        prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before that was set
            os._exit(1)
        for one in ignoring:
            signal.signal(one, signal.SIG_IGN)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=before_exec,
    )


def end_descendants() -> None:
    """Asks all descendants to end, and kills those that have not after ``GRACE_S`` seconds.

    After :func:`adopt_orphans` none escapes when its parent ends, and no id is a foreign process's.
    """
    for how in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_S
        signalled: set[int] = set()
        while (family := descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in family - signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
            signalled |= family
            time.sleep(0.05)


def descendants(ancestor: int) -> set[int]:
    """Ids of the living processes that descend from this one."""
    found = set()
    for process in psutil.Process(ancestor).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                found.add(process.pid)
    return found
