"""``ray start``, without the servers that nobody asks in a run: a node of a cluster.

Its server for Ray clients would listen on a fixed port, and end the node where that is taken. Its
workers are forked from a template.
"""

import contextlib

from cluster.hardware.ray_internals import run_command
from cluster.hardware.worker_template import can_fork, worker_template

OF_A_WORKER = ("torch", "fl.executor", "fl.methods.registry")
"""What most of a worker's imports are; none of them imports Ray."""


def main() -> None:
    """Starts the node, and stays until it ends."""
    with worker_template(OF_A_WORKER) if can_fork() else contextlib.nullcontext() as template:
        run_command(template)


if __name__ == "__main__":
    main()
