"""Everything that was started is ended, and nothing else."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cluster.living import alive
from tests.waiting import wait_until

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(600)
"""
ORPHAN = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {STUBBORN!r}, *sys.argv[1:]])
"""


def run(body: str, marker: Path) -> subprocess.Popen[bytes]:
    """A process of its own that uses the module, since it adopts and ends all it has."""
    code = textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from cluster.hardware import processes
        from cluster.hardware.processes import adopt_orphans, descendants, end_descendants, start
        import os, signal
        MARKER = Path({str(marker)!r})
        ORPHAN = {ORPHAN!r}
    """) + textwrap.dedent(body)
    return subprocess.Popen([sys.executable, "-c", code])


@pytest.mark.process
def test_children_orphans_and_the_stubborn_are_ended(tmp_path: Path) -> None:
    process = run(
        """
        adopt_orphans()
        deaf = MARKER.with_name("deaf")
        start([sys.executable, "-c", ORPHAN, str(deaf)], None).wait()
        start(["sleep", "600"], None)
        while not deaf.exists():
            time.sleep(0.01)
        MARKER.write_text(" ".join(map(str, descendants(os.getpid()))))
        begin = time.monotonic()
        processes.GRACE_S = 0.5
        end_descendants()
        assert not descendants(os.getpid())
        assert 0.5 <= time.monotonic() - begin < 60
        """,
        tmp_path / "ids",
    )
    neighbour = subprocess.Popen(["sleep", "600"])
    assert process.wait() == 0
    ids = [int(word) for word in (tmp_path / "ids").read_text().split()]
    assert len(ids) == 2
    assert not any(alive(pid) for pid in ids)
    assert neighbour.poll() is None
    neighbour.kill()
    neighbour.wait()


@pytest.mark.process
def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    process = run(
        """
        child = start(["sleep", "600"], None)
        MARKER.write_text(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path / "id",
    )
    process.wait()
    pid = int((tmp_path / "id").read_text())
    wait_until(lambda: not alive(pid), within=5)


@pytest.mark.process
def test_a_child_can_be_deaf_to_a_signal(tmp_path: Path) -> None:
    process = run(
        """
        child = start(["sleep", "600"], None, ignoring=[signal.SIGUSR2])
        time.sleep(0.3)
        child.send_signal(signal.SIGUSR2)
        time.sleep(0.3)
        assert child.poll() is None
        """,
        tmp_path / "none",
    )
    assert process.wait() == 0
