"""Waiting for what another process does."""

import math
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], within: float = math.inf) -> None:
    """Returns once the condition holds.

    Args:
        within: seconds, where it would be a fault to take longer. Other waits are ended by pytest's
            own limit: any shorter one fails on some slow machine.
    """
    deadline = time.monotonic() + within
    while True:
        late = time.monotonic() > deadline  # before a last look: this process may have stood still
        if condition():
            return
        assert not late, f"not within {within:g} s"
        time.sleep(0.1)
