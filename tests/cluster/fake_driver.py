"""An nvidia-smi that says what a test tells it to."""

import os
import shlex
from pathlib import Path

A, B, C = "GPU-aaaa1111-22", "GPU-aaaa3333-44", "GPU-bbbb5555-66"
ROWS = "".join(f"{uuid}, NVIDIA H200, 143771, Disabled\n" for uuid in (A, B, C))
MIG_ROWS = f"{A}, NVIDIA H200, 143771, Enabled\n{B}, NVIDIA H200, 143771, Disabled\n"
MIG_LIST = f"""GPU 0: NVIDIA H200 (UUID: {A})
  MIG 3g.71gb     Device  0: (UUID: MIG-c6d4f1ef-42)
  MIG 1g.18gb+me  Device  1: (UUID: MIG-cba663e8-9b)
GPU 1: NVIDIA H200 (UUID: {B})
"""


def nvidia_smi(folder: Path, rows: str, listing: str = "", *, status: int = 0) -> dict[str, str]:
    """Puts the command first on a PATH; ``rows`` answers the query, ``listing`` ``-L``."""
    script = f"""if [ "$1" = -L ]; then printf %s {shlex.quote(listing)}
else printf %s {shlex.quote(rows)}; fi
exit {status}"""
    return command(folder, script)


def command(folder: Path, script: str) -> dict[str, str]:
    """The environment in which ``nvidia-smi`` is this shell script."""
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
