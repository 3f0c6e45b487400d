"""What Ray runs to start a worker where there is a template of workers: has it fork one.

Run by its path, and imports nothing of ours: it starts in a few milliseconds. Ray's own script does
its work where nobody answers, or where the worker is to have more of its own than variables.
"""

import json
import os
import signal
import socket
import sys

TEMPLATE = "ONEFOLD_WORKER_TEMPLATE"
"""Environment variable: the socket at which the template listens."""
RAYS_OWN = "setup_worker.py"
"""Ray's own script, beside the worker's."""
FOR_THAT_SCRIPT = "--language="
"""The start of an argument for that script alone."""
OWN_ENVIRONMENT = "--serialized-runtime-env-context="
"""The start of the argument with what the worker is to have of its own, as JSON."""
DONE = b"1"
"""The template's answer when it has forked the worker."""
SET_PARENT_DEATH_SIGNAL = 1
"""Option of Linux's prctl."""


def main(arguments: list[str]) -> None:
    """Asks the template for a worker with these arguments, and ends when it is there."""
    node = os.getppid()
    worker = [argument for argument in arguments if not argument.startswith(FOR_THAT_SCRIPT)]
    while worker[0].startswith("-"):  # flags of Python's
        del worker[0]
    variables = _variables(worker)
    if variables is not None:
        plain = [argument for argument in worker if not argument.startswith(OWN_ENVIRONMENT)]
        if _forked(plain, {**os.environ, **variables}):
            return
    end_with(node)
    script = os.path.join(os.path.dirname(worker[0]), RAYS_OWN)
    os.execv(sys.executable, [sys.executable, script, *arguments])


def end_with(parent: int) -> None:
    """Has this process killed when its parent ends.

    A worker of Ray that is just starting when its node dies would wait for half a minute, and
    make the node's folder again, which has been removed, for everybody to read.
    """
    import ctypes  # it takes as long to import as the rest takes to run

    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _variables(worker: list[str]) -> dict[str, str] | None:
    """Environment variables of the worker's own; None if it is to have more than these."""
    for argument in worker:
        if argument.startswith(OWN_ENVIRONMENT):
            own = json.loads(argument.removeprefix(OWN_ENVIRONMENT))
            variables = own.pop("env_vars", None) or {}  # such as Ray Tune gives each trial
            python = own.pop("py_executable", None) or sys.executable
            refers = any("$" in value for value in variables.values())  # Ray replaces these
            return None if any(own.values()) or refers or python != sys.executable else variables
    return {}


def _forked(arguments: list[str], environment: dict[str, str]) -> bool:
    """Has the template fork a process that runs a script with these arguments, in this environment
    and with this process's streams; False where no template answers."""
    asked = json.dumps({"arguments": arguments, "environment": environment}).encode()
    with socket.socket(socket.AF_UNIX) as template:
        try:
            template.connect(os.environ.get(TEMPLATE, ""))
            socket.send_fds(template, [asked[:1]], [0, 1, 2])
            template.sendall(asked[1:])
            template.shutdown(socket.SHUT_WR)
            return template.recv(1) == DONE
        except OSError:
            return False


if __name__ == "__main__":
    main(sys.argv[1:])
