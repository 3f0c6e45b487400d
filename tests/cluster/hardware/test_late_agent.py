"""What stands before Ray's agent for environments has its port, and becomes it when it is asked."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hardware import late_agent
from tests.waiting import wait_until

NODE = """
import subprocess, sys
agent = subprocess.Popen([sys.executable, "-S", *sys.argv[1:]])
print(agent.pid, flush=True)
sys.stdin.read()
"""
AGENT = """
import pathlib, sys
pathlib.Path("began").write_text(" ".join(sys.argv[1:]))
"""


class Node:
    """Stands for Ray's node, with its agent in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "agent.py").write_text(AGENT)
        here = ["--node-id=ab", f"--session-dir={folder}", "--node-ip-address=127.0.0.1"]
        own = [sys.executable, "agent.py", *here, "--runtime-env-agent-port=0", "--temp-dir=x"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE, late_agent.__file__, *own],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.agent = Path("/proc", self.process.stdout.readline().strip())

    def port(self) -> int:
        told = self.folder / f"{late_agent.PORT}_ab"
        wait_until(told.exists, seconds=30)
        return int(told.read_text())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.process.communicate("")


def test_nothing_begins_until_somebody_asks(node: Node) -> None:
    port, command = node.port(), (node.agent / "cmdline").read_text()
    assert "late_agent.py" in command
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
        began = node.folder / "began"
        wait_until(lambda: began.exists() and began.read_text(), seconds=30)
    arguments = began.read_text().split()
    assert arguments[0] == "--node-id=ab"
    assert arguments[-2:] == ["--temp-dir=x", f"--runtime-env-agent-port={port}"]


def test_it_ends_with_its_node(node: Node) -> None:
    node.port()
    assert node.agent.exists()
    node.process.communicate("")
    wait_until(lambda: not node.agent.exists(), seconds=30)
    assert not (node.folder / "began").exists()
