"""Waiting for what another process does."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 200) -> None:
    """Returns once the condition holds; fails if it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
