"""Errors of the file system as one line: which file, why, and what to do."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fl.errors import UserError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""No room: on the disk, within the quota, or within the largest size of a file."""
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
IN_THE_WAY = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY}
OF_RUST = re.compile(r"\(os error (\d+)\)")
"""How safetensors, which is written in Rust, ends the message of such an error."""


def is_of_disk(error: OSError) -> bool:
    """Whether it is about a file; sockets and pipes raise OSErrors too."""
    return error.filename is not None or error.errno in FULL | {errno.EROFS, errno.EIO}


def disk_line(error: OSError) -> str:
    """Which file, why, and what to do, in one line."""
    file = "a file" if error.filename is None else printable(os.fsdecode(error.filename))
    reason = error.strerror or " ".join(str(error).split())
    return f"cannot use {file}: {reason}{_advice(error.errno)}"


def printable(path: str) -> str:
    """A path as text of one line: what cannot be printed is escaped, and a long one is cut."""
    shown = path if path.isprintable() else repr(path)
    return shown if len(shown) <= 200 else f"{shown[:90]} ... {shown[-100:]}"


def _advice(code: int | None) -> str:
    if code in FULL:
        return "; make room there"
    if code in FORBIDDEN:
        return "; allow writing there, or choose another folder"
    if code in IN_THE_WAY:
        return "; move away what is there, or choose another folder"
    return ""


def about(error: BaseException, path: Path) -> OSError | None:
    """The OSError behind an error from writing ``path``, with the path; None if there is none.

    torch and safetensors raise errors of their own in its place; one from a mere ``write`` does not
    know its file.
    """
    cause = error.__context__ if isinstance(error, RuntimeError) else error  # RuntimeError: torch's
    if isinstance(cause, OSError) and cause.errno is not None:
        return OSError(cause.errno, cause.strerror, cause.filename or str(path))
    found = OF_RUST.search(str(error))
    return OSError(int(found[1]), os.strerror(int(found[1])), str(path)) if found else None


@contextmanager
def refused_by_disk() -> Iterator[None]:
    """Inside, before anything runs, an error of the file system is bad input."""
    try:
        yield
    except OSError as error:
        if not is_of_disk(error):
            raise
        raise UserError(disk_line(error)) from None
