"""A Ray cluster over two nodes, here two groups of processes on one host."""

import contextlib
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from cluster.hardware.multi_node_ray import tail
from tests.cluster.living import all_end
from tests.waiting import wait_until

NODE = """
import sys, threading, time
from pathlib import Path
from cluster.hardware.multi_node_ray import GatheringError, attend, gather
from cluster.hardware.inventory import Inventory
from cluster.hardware.processes import adopt_orphans
adopt_orphans()
meeting = Path(sys.argv[1])
own = Inventory(node="n", cpus=2, memory_bytes=2**30, gpus=(), source="test")
"""
HEAD = """
with gather(meeting, nodes=2, inventory=own, patience_s=float(sys.argv[2])) as address:
    from cluster.hardware.private_ray import joined_ray
    with joined_ray(address):
        import ray
        print(address, ray.cluster_resources(), flush=True)
    (meeting / "met").touch()
    time.sleep(float(sys.argv[3]))
"""
MEMBER = "attend(meeting, node=1, inventory=own)"


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(NODE + code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.slow
def test_a_member_waits_for_a_late_head_and_leaves_with_it(tmp_path: Path) -> None:
    meeting = tmp_path / "shared place"
    member = start(MEMBER, meeting)
    wait_until(lambda: (meeting / "node-1.log").exists(), seconds=60)
    time.sleep(2)
    assert member.poll() is None
    head = start(HEAD, meeting, 120, 0.5)
    wait_until(lambda: (meeting / "met").exists(), seconds=120)
    started = [*family(member), *family(head)]
    assert (meeting / "head.json").stat().st_mode & 0o077 == 0 or (
        meeting.stat().st_mode & 0o077 == 0
    )
    printed, complaint = head.communicate(timeout=60)
    assert head.returncode == 0, complaint
    # Both nodes' bounds, not this machine's.
    assert "'CPU': 4.0" in printed
    assert member.wait(timeout=30) == 0
    assert all_end(started, 10)
    assert not (meeting / "head.json").exists()


@pytest.mark.slow
def test_a_node_that_never_joins_is_named_with_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "node-1.log").write_text("no space left on device\n")
    head = start(HEAD, tmp_path, 2, 0)
    _, complaint = head.communicate(timeout=120)
    assert head.returncode == 1
    last = complaint[complaint.index("GatheringError") :]
    assert "1 of 2 nodes did not join" in last
    assert "node-1: no space left on device" in last
    assert (tmp_path / "over").exists()


@pytest.mark.slow
def test_a_member_whose_head_is_killed_gives_up(tmp_path: Path) -> None:
    member = start(MEMBER, tmp_path)
    head = start(HEAD, tmp_path, 120, 600)
    wait_until(lambda: (tmp_path / "met").exists(), seconds=120)
    members, heads = family(member), family(head)
    head.kill()
    _, complaint = member.communicate(timeout=60)
    assert "is gone" in complaint
    assert all_end(members, 10)
    # Nobody was left to end these at once; Ray's own agents would notice after a while.
    for process in heads:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    head.communicate()


def test_a_member_of_a_gathering_that_failed_leaves_at_once(tmp_path: Path) -> None:
    (tmp_path / "over").touch()
    assert start(MEMBER, tmp_path).wait(timeout=30) == 0


def test_a_log_that_is_not_there_hints_at_the_directory(tmp_path: Path) -> None:
    assert "shared" in tail(tmp_path / "none.log")
