"""Stands for the agent of Ray's node that serves metrics, which nobody asks for: says so.

Ray's node waits until its agent has told its ports, and ends with it. Ray's own takes most of a
second of a core and 60 MB. Run by its path; imports nothing of ours or of Ray's. The node's other
agent is started late, see ``late_agent.py``.
"""

import argparse
import os
import time
from pathlib import Path

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
"""Names of the files, before the node's id, from which Ray's node reads the ports."""
NO_PORT = "-1"
"""What Ray's own agent writes for a service that is not offered."""


def main() -> None:
    """Writes the files, and stays until the process that started this one has ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--session-dir", type=Path)
    parser.add_argument("--node-id")
    told, _ = parser.parse_known_args()
    node = os.getppid()
    for name in PORTS:
        part = told.session_dir / f"{name}_{told.node_id}.{os.getpid()}"
        part.write_text(NO_PORT)
        part.rename(part.with_suffix(""))
    while os.getppid() == node:
        time.sleep(0.5)


if __name__ == "__main__":
    main()
