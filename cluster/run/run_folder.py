"""Deletes runs: only what is a run's own folder, which no process is at work in."""

import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import yaml

from cluster.run.run_lock import FILE as LOCK
from cluster.run.run_lock import locked
from cluster.run.yaml_files import read_yaml
from fl.errors import UserError


def is_run(path: Path) -> bool:
    """Whether it is a folder, no link to one, with the configuration that each run writes."""
    if path.is_symlink():
        return False
    try:
        found = read_yaml(path / "config.yaml")
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(found, dict) and {"method", "versions"} <= found.keys()


def empty(path: Path) -> None:
    """Deletes all that is in a run's folder, which this process has locked, but for the lock."""
    for file in path.iterdir():
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        elif file.name != LOCK:
            file.unlink()


def delete(paths: Iterable[Path]) -> None:
    """Deletes the folders of these runs.

    Raises:
        UserError: one is no run, or a process is at work in it; then none is deleted.
    """
    paths = tuple(paths)
    with ExitStack() as held:
        for path in paths:
            if not is_run(path):
                raise UserError(f"{path} is no run's folder: delete it by hand")
            held.enter_context(locked(path))
        for path in paths:
            shutil.rmtree(path)
