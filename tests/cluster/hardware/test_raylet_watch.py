"""A process whose raylet dies says so; one that ends its Ray says nothing."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from cluster.hardware.private_ray import MESSAGE, watched
from tests.waiting import wait_until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_the_death_is_told_while_it_is_watched(sleeper: subprocess.Popen[bytes]) -> None:
    told: list[int] = []
    with watched(sleeper, told.append):
        assert not told
        sleeper.kill()
        wait_until(lambda: told, seconds=10)
    assert told == [sleeper.pid]


def test_an_end_after_the_context_is_nobodys_business(sleeper: subprocess.Popen[bytes]) -> None:
    told: list[int] = []
    with watched(sleeper, told.append):
        pass
    sleeper.kill()
    sleeper.wait()
    assert not told


def test_the_process_ends_with_one_line_and_status_1() -> None:
    script = (
        "import subprocess, time; from cluster.hardware.private_ray import watched\n"
        "other = subprocess.Popen(['sleep', '60'])\n"
        "with watched(other):\n    other.kill(); time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(MESSAGE.partition("{")[0])
