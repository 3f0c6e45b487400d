"""A template of Ray's workers for the tests' own clusters."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TEMPLATE = """
import sys
import cluster.launch, cluster.run.smoke
from cluster.hardware.worker_template import worker_template

with worker_template() as address:
    print(address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    """What workers are forked from, as a launch's are: each would import torch for two seconds.

    In a process of its own, as the tests' has computed before.
    """
    command = [sys.executable, "-c", TEMPLATE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        yield Path(process.stdout.readline().decode().strip())
        process.stdin.close()
