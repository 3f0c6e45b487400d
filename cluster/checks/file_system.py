"""The file system of a folder that may not exist yet: where it lies, its type, what is free."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
"""The kernel's list of what is mounted: device, folder and type on each line."""


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """Where files of a folder would lie."""

    folder: str
    type: str
    """As the kernel names it: ext4, nfs4, overlay; unknown where it does not tell."""
    free_bytes: int


def file_system(folder: Path, mounts: Path = MOUNTS) -> FileSystem:
    """The file system that files of the folder lie on, or will once it is made."""
    there = nearest_existing(folder)
    return FileSystem(
        folder=str(folder.absolute()),
        type=_type(there, mounts.read_text() if mounts.exists() else ""),
        free_bytes=shutil.disk_usage(there).free,
    )


def nearest_existing(folder: Path) -> Path:
    """The folder itself, or else the nearest one above it that exists; without symbolic links."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return there.resolve()


def _type(there: Path, mounts: str) -> str:
    """The type of the mount that holds the path: the last one of those nearest above it."""
    nearest, found = "", "unknown"
    for line in mounts.splitlines():
        _, mounted, kind, *_ = line.split(" ")
        mount = _unescaped(mounted)
        if len(mount) >= len(nearest) and there.is_relative_to(mount):
            nearest, found = mount, kind
    return found


def _unescaped(mount: str) -> str:
    """A mount's folder as it is: the kernel writes blanks and backslashes as three octal digits."""
    return os.fsdecode(os.fsencode(mount).decode("unicode_escape").encode("latin-1"))
