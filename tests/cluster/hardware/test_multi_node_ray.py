"""A Ray cluster over two nodes, here two groups of processes on one host."""

import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.hardware import multi_node_ray
from cluster.hardware.inventory import Inventory
from cluster.hardware.multi_node_ray import GatheringError, attend, gather, tail
from fl.errors import UserError
from tests.cluster.living import await_end, wait_for
from tests.cluster.strangers import Door, answers, doors
from tests.waiting import wait_until

NODE = """
import sys, threading, time
from pathlib import Path
from cluster.hardware import multi_node_ray
from cluster.hardware.multi_node_ray import GatheringError, attend, gather
from cluster.hardware.inventory import Inventory
from cluster.hardware.processes import adopt_orphans
adopt_orphans()
meeting = Path(sys.argv[1])
own = Inventory(node="n", cpus=2, memory_bytes=2**30, gpus=(), source="test")
"""
HEAD = """
multi_node_ray.JOIN_S, nodes = float(sys.argv[2]), int(sys.argv[4])
with gather(meeting, nodes=nodes, inventory=own) as address:
    from cluster.hardware.private_ray import joined_ray
    with joined_ray(address):
        import ray
        print(address, ray.cluster_resources(), flush=True)
        @ray.remote
        def parent():
            import os, sys
            from pathlib import Path
            return "torch" in sys.modules, Path(f"/proc/{os.getppid()}/comm").read_text()
        print(ray.get(parent.remote()), flush=True)
    (meeting / "met").touch()
    ends = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < ends and not (meeting / "seen").exists():
        time.sleep(0.1)
"""
OWN = Inventory(node="n", cpus=1, memory_bytes=2**30, gpus=(), source="test")
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


@pytest.fixture
def port_10001() -> Iterator[None]:
    """Somebody has the port on which Ray's server for Ray clients would listen."""
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # a stranger has it already
            taken.bind(("", 10001))
            taken.listen()
        yield


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("port_10001")
def test_a_member_waits_for_a_late_head_and_gives_up_if_it_is_killed(tmp_path: Path) -> None:
    meeting = tmp_path / "shared place"
    member = start(MEMBER, meeting)
    wait_until(lambda: (meeting / "node-1.log").exists())
    time.sleep(2)
    assert member.poll() is None
    head = start(HEAD, meeting, 600, 600, 2)
    wait_for(head, (meeting / "met").exists)
    record = meeting / "head.json"
    assert [stat.S_IMODE(f.stat().st_mode) for f in (record, meeting)] == [0o600, 0o700]
    root = Path(json.loads(record.read_text())["root"])
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    # Over several nodes Ray itself listens on all interfaces, and leaves no choice; but it asks for
    # the token. Its agents, one of each node, have the node's address.
    names = {"gcs_server": 1, "raylet": 4, "ray::IDLE": 1, "ray::RuntimeEnvAgent": 2}

    def opened() -> set[Door]:
        return {door for door in doors([*family(member), *family(head)]) if not door.local}

    def are_up() -> bool:
        there = Counter(door.process for door in opened())
        return all(there[name] >= count for name, count in names.items())

    wait_until(are_up)
    found = opened()
    rays = {door for door in found if door.process in ("gcs_server", "raylet", "ray::IDLE")}
    for door in rays:  # each is asked for long, as they share two cores with other tests
        answer = answers(door.port, within_s=30)
        assert "OK" not in answer
        assert "UNAUTHENTICATED" in answer or door not in opened(), (door, answer)
    agents = found - rays
    assert [door.process for door in agents] == ["ray::RuntimeEnvAgent"] * 2
    assert not {door.host for door in agents} & {"::", "0.0.0.0"}
    assert 10001 not in {door.port for door in found}
    members, heads = family(member), family(head)
    head.kill()
    _, complaint = member.communicate()
    assert "is gone" in complaint
    await_end(members)
    # Nobody was left to end these at once.
    for process in heads:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    printed, _ = head.communicate()
    # Both nodes' bounds, not this machine's.
    assert "'CPU': 4.0" in printed
    assert r"(True, 'onefold-workers\n')" in printed  # its workers are forked, with torch


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_of_one_node_is_reached_from_this_host_alone(tmp_path: Path) -> None:
    head = start(HEAD, tmp_path / "meeting", 600, 600, 1)
    wait_for(head, (tmp_path / "meeting" / "met").exists)
    started = family(head)
    found = doors(started)
    (tmp_path / "meeting" / "seen").touch()
    printed, complaint = head.communicate()
    assert head.returncode == 0, complaint
    await_end(started)
    assert not (tmp_path / "meeting" / "head.json").exists()
    assert printed.startswith("127.0.0.1:")
    # What the node offers, but for its object store; not this machine's.
    (memory,) = map(float, re.findall(r"'memory': ([\d.]+)", printed))
    assert 0.7 * OWN.memory_bytes <= memory < OWN.memory_bytes
    assert {door.process for door in found} >= {"gcs_server", "raylet"}
    assert not {door for door in found if not door.local}


def test_a_directory_that_others_can_write_to_is_no_meeting_place(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "head.json").write_text(json.dumps({"address": "192.0.2.1:1"}))
    with pytest.raises(UserError, match="open to other users"):
        attend(tmp_path, node=1, inventory=OWN)


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.mark.usefixtures("own_environment")
def test_a_node_that_never_joins_is_named_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node-1.log").write_text("no space left on device\n")
    there = [{"NodeName": name, "Alive": name == "node-0"} for name in ("node-0", "node-1")]
    monkeypatch.setattr(multi_node_ray, "JOIN_S", 0.1)
    monkeypatch.setattr(multi_node_ray, "_start_raylet", lambda *_: None)
    monkeypatch.setattr(multi_node_ray, "published_address", lambda root: "127.0.0.1:1")
    monkeypatch.setattr(multi_node_ray, "joined_ray", contextlib.nullcontext)
    monkeypatch.setattr("ray.nodes", lambda: there)
    ended: list[bool] = []
    monkeypatch.setattr(
        multi_node_ray, "end_descendants", lambda: ended.append((tmp_path / "over").exists())
    )
    missing = "1 of 2 nodes did not join .*127.0.0.1:1; .*\nnode-1: no space left on device$"
    gathered = gather(tmp_path, nodes=2, inventory=OWN)
    with pytest.raises(GatheringError, match=missing), gathered:
        pytest.fail("it gave an address before all nodes had joined")
    assert ended == [True]  # as the other nodes are told
    assert not (tmp_path / "head.json").exists()


@pytest.mark.usefixtures("own_environment")
def test_a_member_of_a_gathering_that_failed_leaves_at_once(tmp_path: Path) -> None:
    (tmp_path / "over").touch()
    attend(tmp_path, node=1, inventory=OWN)


@pytest.mark.usefixtures("own_environment")
def test_a_member_that_starts_while_the_head_ends_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray makes the head's folder anew, open to others, if the head has removed it already."""
    root = tmp_path / "onefold-12345678"
    head = {"address": "127.0.0.1:1", "host": socket.gethostname(), "root": str(root), "token": ""}

    def starts(*_: object) -> None:
        (root / "r" / "session_latest").mkdir(parents=True)
        (tmp_path / "over").touch()

    (tmp_path / "head.json").write_text(json.dumps(head))
    monkeypatch.setattr(multi_node_ray, "_start_raylet", starts)
    monkeypatch.setattr(multi_node_ray, "end_descendants", lambda: None)
    attend(tmp_path, node=1, inventory=OWN)
    assert not root.exists()


def test_a_log_that_is_not_there_hints_at_the_directory(tmp_path: Path) -> None:
    assert "shared" in tail(tmp_path / "none.log")
