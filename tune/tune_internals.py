"""What Ray Tune states nowhere, and may change with any release: a trial's number in its id."""

TESTED_WITH = "2.60.0"
"""The version that tests/tune/test_tune_internals.py last checked this file with."""


def number_in(trial_id: str) -> str:
    """A trial's number in the sweep, with leading zeros; the whole id if it has none."""
    return trial_id.rpartition("_")[2]
