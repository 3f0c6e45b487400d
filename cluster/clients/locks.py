"""Locks by name between processes: any number in one file, dropped by the kernel at death."""

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import struct
import sys
from pathlib import Path


class Locks:
    """A byte of the file for each name, locked by this object until it is released.

    A file per name would run out of descriptors with thousands of clients. On a file system without
    locks every process gets every lock, so that work may be done twice and nothing worse.
    """

    def __init__(self, file: Path) -> None:
        self.work = True
        """Whether the file system has locks, as far as was seen."""
        how = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW  # another's file is not ours to write
        self.descriptor = os.open(file, how, 0o666)
        found = os.fstat(self.descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise OSError(errno.EINVAL, "it is no plain file of its own", str(file))

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # the file could not be opened
            os.close(self.descriptor)

    def acquire(self, name: str, *, wait: bool = False) -> bool:
        """Takes the lock; while another holds it, returns False, or waits for it with ``wait``."""
        try:
            self._set(fcntl.F_WRLCK, name, wait)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            self.work = False
        return True

    def release(self, name: str) -> None:
        """Gives the lock up, if it is held."""
        with contextlib.suppress(OSError):
            self._set(fcntl.F_UNLCK, name, wait=False)

    def _set(self, kind: int, name: str, wait: bool) -> None:
        start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
        if sys.platform == "linux":  # locks of the open file, so that threads have their own
            command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
            record = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, 1, 0)
            fcntl.fcntl(self.descriptor, command, record)
            return
        how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        if kind == fcntl.F_UNLCK:
            how = fcntl.LOCK_UN  # which takes no further flag
        fcntl.lockf(self.descriptor, how, 1, start)
