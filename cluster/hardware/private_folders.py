"""Folders and files that no other user of the host can read: 0700 and 0600, and owned by us."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fl.errors import UserError
from fl.own_process import AT_LAST

SHORT_TMP = Path("/tmp")
"""A long TMPDIR would make the paths of Ray's sockets too long."""
LOCK = ".lock"
"""The file in a folder that is locked while the folder is in use."""
SOCKET_PATH = 107
"""Bytes that the path of a socket may have."""
BELOW_ROOT = len(
    "/onefold-12345678/r/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store.12"
)
"""Characters that :func:`short_root` and Ray add to the temporary folder."""
_present: set[Path] = set()
"""This process's folders."""


def short_root() -> contextlib.AbstractContextManager[Path]:
    """An :func:`own_folder` for Ray's sockets and logs; raises `UserError` if the sockets' paths
    would be too long."""
    parent, room = temporary_folder(), SOCKET_PATH - BELOW_ROOT
    if len(os.fsencode(parent)) > room:
        raise UserError(f"TMPDIR must be at most {room} bytes for Ray's sockets, got {parent}")
    return own_folder()


@contextlib.contextmanager
def own_folder(prefix: str = "onefold-") -> Iterator[Path]:
    """A folder (0700) of this user and process, with a short path for sockets, gone afterwards.

    First it removes the folders there whose processes were killed: their locks are held no more.
    Ray opens the folder that it is given to everybody, so it is given :func:`rays_folder` of this.
    """
    parent = temporary_folder()
    for left in parent.glob("onefold-*"):
        _remove_if_left(left)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    _present.add(folder)
    new = folder / f"{LOCK}.new"
    lock = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(folder / LOCK)  # late: a lock of that name was held from its first moment
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        _present.remove(folder)


def remove_all_folders() -> None:
    """Removes every folder that this process still has, just before its end."""
    for folder in list(_present):
        shutil.rmtree(folder, ignore_errors=True)


AT_LAST.append(remove_all_folders)


def _remove_if_left(folder: Path) -> None:
    """Removes the folder if it is ours, and the process that had its lock is dead."""
    with contextlib.suppress(OSError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def rays_folder(root: Path) -> Path:
    """Where Ray keeps its files below a private folder, which keeps others away from them."""
    return root / "r"  # a short name, for the sockets


def temporary_folder() -> Path:
    """The folder below which each run makes one for Ray: a short one, if it can be written to."""
    return SHORT_TMP if os.access(SHORT_TMP, os.W_OK) else Path(tempfile.gettempdir())


def private_folder(path: Path) -> Path:
    """Makes the folder, unless it is there already and ours alone.

    Raises:
        UserError: a link, a file, or a folder of another user's or open to others is there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()  # a link is not followed
    if not stat.S_ISDIR(found.st_mode):
        raise UserError(f"{path} must be a folder, but is not; remove it")
    if found.st_uid != os.geteuid():
        raise UserError(f"{path} belongs to user {found.st_uid}, and must belong to you alone")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise UserError(f"{path} is open to other users (mode {mode:o}); it must have mode 700")
    return path
