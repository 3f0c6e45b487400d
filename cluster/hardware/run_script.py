"""Runs a script of ours in a process of its own, and waits for what it writes."""

import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile

from cluster.hardware import fork_worker
from cluster.hardware.shadows import environment


def run_script(script: Path, given: bytes, timeout_s: float) -> tuple[bytes, bytes]:
    """Gives it ``given`` to read; returns what it wrote, and what it wrote as errors.

    The process is forked from the template of workers, where there is one: it shares torch's pages,
    and need not import it. Else it is started. It reads and writes by the numbers of its streams,
    as a fork's ``sys.stdin`` may be another's.

    Raises:
        TimeoutError: it had not ended after ``timeout_s`` seconds, and was killed.
    """
    with ExitStack() as held:
        streams = [held.enter_context(TemporaryFile()) for _ in range(3)]
        streams[0].write(given)
        streams[0].seek(0)
        numbers = [stream.fileno() for stream in streams]
        if pid := fork_worker.ask([str(script)], environment(), numbers):
            _wait(pid, timeout_s)
        else:
            _start(script, numbers, timeout_s)
        for stream in streams[1:]:
            stream.seek(0)
        return streams[1].read(), streams[2].read()


def _wait(pid: int, timeout_s: float) -> None:
    """Waits for a process that is not this one's child."""
    with suppress(ProcessLookupError):  # it has ended
        process = os.pidfd_open(pid)
        try:
            if not select.select([process], [], [], timeout_s)[0]:
                raise TimeoutError
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)


def _start(script: Path, streams: list[int], timeout_s: float) -> None:
    stdin, stdout, stderr = streams
    try:
        subprocess.run(
            [sys.executable, "-P", script],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment(),
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
