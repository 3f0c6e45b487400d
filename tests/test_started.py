"""What the tests' own check of their marks takes for Ray, a Slurm, or a process."""

import subprocess
import sys

import pytest

from tests.started import marks_of, started


@pytest.mark.parametrize(
    ("command", "marks"),
    [
        ("git ls-files onefold", ""),
        ("/usr/bin/python3 page.py", "process"),
        (("python", "-m", "tests.undrawn", "cluster.launch", "--runtime=inprocess"), "process"),
        (("python", "-m", "tests.undrawn", "cluster.launch", "--name=a"), "process ray"),
        (("bash", "-c", "onefold sweep --name=a"), "process ray"),
        (("/ray/core/gcs_server", "--port=0"), "process ray"),
        (("slurmctld", "-D"), "process slurm"),
    ],
)
def test_a_command_has_the_marks_of_what_it_starts(
    command: str | tuple[str, ...], marks: str
) -> None:
    assert marks_of(command) == set(marks.split())


@pytest.mark.process
def test_what_is_started_is_seen() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert started == {"process"}
