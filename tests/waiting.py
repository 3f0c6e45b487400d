"""Waiting for what another process does."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object]) -> None:
    """Returns once the condition holds. As for all that tests wait for, pytest's own limit ends it:
    a limit of its own would fail on a slow machine."""
    while not condition():
        time.sleep(0.1)
