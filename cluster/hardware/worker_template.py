"""A process from which Ray's workers on this node are forked, with torch imported once for all.

A worker that Ray starts takes over two seconds of a core to import torch and ours, and 290 MiB of
memory that a forked one shares. The template is forked from the launch, or from what starts a
node of an allocation, before Ray is imported, which reads a worker's environment then, and before
torch has computed anything, since the threads of OpenMP do not survive a fork. Nor does CUDA's
driver: each worker loads it for itself, and from a process that has loaded it none is forked.
"""

import contextlib
import ctypes
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cluster.hardware.fork_worker import DONE, end_with
from cluster.hardware.private_folders import short_root
from cluster.hardware.processes import OF_TERMINALS

SET_NAME = 15
"""Option of Linux's prctl: the process's name, of 15 bytes at most."""
STREAMS = 3
"""A process's input, output and errors."""
FIRST_TO_GO = "1000"
"""Ray's value for a worker in ``oom_score_adj``: what the kernel ends first for want of memory."""


def can_fork(maps: Path = Path("/proc/self/maps")) -> bool:
    """Whether workers may be forked from this process: on Linux, without CUDA's driver in it.

    ``maps``: what is loaded into the process.
    """
    return sys.platform == "linux" and "/libcuda.so" not in maps.read_text()


@contextlib.contextmanager
def worker_template(modules: Sequence[str] = ()) -> Iterator[Path]:
    """Forks the template; gives the socket at which it is asked for workers.

    It ends with the context, or with this process, and the workers end with it or their Ray. It
    imports ``modules`` beyond what this process has imported.
    """
    with short_root() as root, socket.socket(socket.AF_UNIX) as listener:
        address = root / "workers"
        listener.bind(str(address))
        listener.listen(64)
        others_end, own_end = os.pipe()
        launch = os.getpid()
        gc.freeze()  # a collection would write to the pages that are shared
        template = os.fork()
        if template == 0:
            os.close(own_end)
            _become_template(listener, others_end, launch, modules)
        os.close(others_end)
        listener.close()
        try:
            yield address
        finally:
            os.close(own_end)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(template, 0)


def _become_template(
    listener: socket.socket, over: int, launch: int, modules: Sequence[str]
) -> None:
    """Forks workers until the other end of ``over`` is closed; never returns."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(SET_NAME, b"onefold-workers", 0, 0, 0)
        end_with(launch)
        # As Ray's own workers: what a terminal sends to all is for the launch, which ends them.
        signal.pthread_sigmask(signal.SIG_BLOCK, OF_TERMINALS)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
        for module in modules:
            import_module(module)
        gc.disable()
        gc.freeze()  # a collection would write to the pages that are shared
        heard: list[Any] = [listener, over]
        while over not in select.select(heard, [], [])[0]:
            if asked := _answer(listener):
                status = _become_worker(**asked)
                break
        else:
            status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _answer(listener: socket.socket) -> dict[str, Any] | None:
    """Forks a worker for the next who asks: what it is to be in the worker, else None."""
    asking, _ = listener.accept()
    with asking:
        message, streams, _, _ = socket.recv_fds(asking, 1, STREAMS)
        while part := asking.recv(1 << 16):
            message += part
        template = os.getpid()
        is_worker = os.fork() == 0
        if is_worker:
            end_with(template)
            for stream, given in enumerate(streams):
                os.dup2(given, stream)
        else:
            with contextlib.suppress(OSError):  # Ray has ended the one that asks
                asking.send(DONE)
        for given in streams:
            os.close(given)
    return json.loads(message) if is_worker else None


def _become_worker(arguments: list[str], environment: dict[str, str]) -> int:
    """Runs Ray's script for workers in this process, as if started for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.enable()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()  # else all workers would draw the same
    np.random.seed()
    sys.argv = arguments
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
