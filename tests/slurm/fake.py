"""Slurm's commands as scripts that note how they were called."""

import os
from pathlib import Path


def fake_command(folder: Path, name: str, script: str) -> dict[str, str]:
    """The environment in which the command is this shell script; its calls go to NAME.calls."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    calls = folder / f"{name}.calls"
    file.write_text(f"#!/bin/sh\necho \"$@\" >> '{calls}'\n{script}\n")
    file.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def calls(folder: Path, name: str) -> list[str]:
    """How the command was called, a line per call."""
    file = folder / f"{name}.calls"
    return file.read_text().splitlines() if file.exists() else []
