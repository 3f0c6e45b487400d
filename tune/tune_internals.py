"""Internals of Ray Tune that we use, which may change with any release.

- A trial's id ends with its number in the sweep: Tune states it nowhere else.
- The function that counts callbacks for Ray's statistics of usage: it imports MLflow and Weights &
  Biases where they are installed, which takes seconds, even where nothing is sent.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from ray.air._internal import usage

TESTED_WITH = "2.60.0"
"""The version that tests/tune/test_tune_internals.py last checked this file with."""


def number_in(trial_id: str) -> str:
    """A trial's number in the sweep, with leading zeros; the whole id if it has none."""
    return trial_id.rpartition("_")[2]


@contextlib.contextmanager
def callbacks_not_counted() -> Iterator[None]:
    """Leaves out the count of callbacks for Ray's statistics of usage."""

    def nothing(callbacks: Any) -> bool:
        return False

    own = usage.tag_callbacks
    usage.tag_callbacks = nothing
    try:
        yield
    finally:
        usage.tag_callbacks = own
