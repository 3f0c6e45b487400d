"""A sweep's trials, for the tests of what is made of them."""

from pathlib import Path

import pytest

from tests.tune.made_up import end, epoch, trial


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The default trial, one that finished, one that was stopped, and one that failed."""
    trained = (end(0, 10.0, reused=False), end(1, 2.0, reused=False))
    reused = (end(0, 10.0, reused=True), end(1, 2.0, reused=True))
    trial(tmp_path, "default", {}, *trained, epoch(1, 0.5, 3), epoch(2, 0.6, 4))
    trial(tmp_path, "00000", {"keep": 0.5}, *reused, epoch(1, 0.9, 3), epoch(2, 0.7, 5))
    trial(tmp_path, "00001", {"keep": 0.7}, *reused, epoch(1, 0.8, 3), finished=False)
    failed = trial(tmp_path, "00002", {"keep": 0.9}, *reused, finished=False)
    (failed / "failure.txt").write_text("UserError: too few\n")
    return tmp_path
