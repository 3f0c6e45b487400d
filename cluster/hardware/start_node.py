"""``ray start``, without the servers that nobody asks in a run: a node of a cluster.

Its server for Ray clients would listen on a fixed port, and end the node where that is taken. Where
the node offers no GPU its workers are forked from a template.
"""

import contextlib
import sys

from cluster.hardware.ray_internals import run_command
from cluster.hardware.worker_template import worker_template

OF_A_WORKER = ("torch", "fl.executor", "fl.methods.registry")
"""What most of a worker's imports are; none of them imports Ray."""
NO_GPUS = "--num-gpus=0"


def main() -> None:
    """Starts the node, and stays until it ends."""
    no_gpus = NO_GPUS in sys.argv
    with worker_template(OF_A_WORKER) if no_gpus else contextlib.nullcontext() as template:
        run_command(template)


if __name__ == "__main__":
    main()
