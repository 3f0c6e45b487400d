"""A process whose raylet dies says so; one that ends its Ray says nothing."""

import subprocess
import sys

from cluster.hardware.private_ray import MESSAGE

SCRIPT = """
import subprocess, time
from cluster.hardware.private_ray import watched
other = subprocess.Popen(["sleep", "60"])
with watched(other):
    {during}
other.kill()
other.wait()
time.sleep(0.5)
"""


def run(during: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT.format(during=during)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_the_process_ends_with_one_line_and_status_1() -> None:
    done = run("other.kill(); time.sleep(60)")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(MESSAGE.partition("{")[0])


def test_an_end_after_the_context_is_nobodys_business() -> None:
    done = run("pass")
    assert (done.returncode, done.stderr) == (0, "")
