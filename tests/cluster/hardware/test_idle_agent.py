"""What stands for the agent of Ray's node tells that it does not serve, and ends with the node."""

import subprocess
import sys
from pathlib import Path

from cluster.hardware import idle_agent
from tests.waiting import wait_until

NODE = """
import subprocess, sys, time
agent = subprocess.Popen([sys.executable, "-S", *sys.argv[1:]], stdout=subprocess.PIPE)
print(agent.pid, flush=True)
sys.stdin.read()
"""


def test_the_agent_says_that_nothing_is_served_and_ends_with_its_node(tmp_path: Path) -> None:
    command = [idle_agent.__file__, "--node-id=ab", f"--session-dir={tmp_path}", "--log-dir=x"]
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert node.stdout
    agent = Path("/proc", node.stdout.readline().strip())
    files = {tmp_path / f"{name}_ab" for name in idle_agent.PORTS}
    wait_until(lambda: set(tmp_path.iterdir()) == files, seconds=30)
    assert {file.read_text() for file in files} == {idle_agent.NO_PORT}
    assert agent.exists()
    node.communicate("")
    wait_until(lambda: not agent.exists(), seconds=30)
