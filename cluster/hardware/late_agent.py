"""Ray's agent for environments, started when it is first asked for something.

Ray's node starts it with itself and waits until it has told its port: most of a second of a core,
and 50 MB. Only Ray Tune's trials and users' own tasks have environments to ask for. So this takes
the port, tells it, and becomes Ray's agent as soon as somebody connects; Ray's node asks again
until it is answered. Run by its path with the agent's command behind it; imports nothing of ours
or of Ray's.
"""

import argparse
import os
import select
import socket
import sys
from pathlib import Path

PORT = "runtime_env_agent_port"
"""Name of the file, before the node's id, from which Ray's node reads the port."""
NAME = "ray-late-agent"
"""Of the process, as long as nobody has asked; 15 bytes at most."""
ALIVE_S = 0.5
"""Seconds between looks whether the node is still there."""


def main(command: list[str]) -> None:
    """Waits for who asks, and becomes the command then; ends with the process that started it."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--session-dir", type=Path)
    parser.add_argument("--node-id")
    parser.add_argument("--node-ip-address")
    parser.add_argument("--runtime-env-agent-port", type=int)
    told, _ = parser.parse_known_args(command)
    Path("/proc/self/comm").write_text(NAME)
    node = os.getppid()
    wanted = told.node_ip_address, told.runtime_env_agent_port
    ((family, *_, address), *_) = socket.getaddrinfo(*wanted, type=socket.SOCK_STREAM)
    with socket.create_server(address[:2], family=family) as listener:
        port = listener.getsockname()[1]
        part = told.session_dir / f"{PORT}_{told.node_id}.{os.getpid()}"
        part.write_text(str(port))
        part.rename(part.with_suffix(""))
        while not select.select([listener], [], [], ALIVE_S)[0]:
            if os.getppid() != node:
                return
    os.execv(command[0], [*command, f"--runtime-env-agent-port={port}"])


if __name__ == "__main__":
    main(sys.argv[1:])
