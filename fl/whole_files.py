"""Files that are whole: writes them atomically, and opens nothing that would never end."""

import errno
import hashlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fl.errors import UserError, reason_of

# Errors of the file system as one line: which file, why, and what to do.

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


@contextmanager
def refused_by_disk() -> Iterator[None]:
    """Inside, before anything runs, an error of the file system is bad input."""
    try:
        yield
    except OSError as error:
        if not is_of_disk(error):
            raise
        raise UserError(disk_line(error)) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file to write to, which replaces ``path`` at the end; deleted after a failure.

    Raises:
        OSError: with ``path`` as its file, also where a library that wrote raised something else.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with named_errors(path):
            yield temporary
            os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Inside, an error of the file system that does not know its file is about ``path``.

    One from a mere ``write`` does not, and safetensors raises errors of its own in its place.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, error.filename or str(path)) from error
    except Exception as error:
        found = OF_RUST.search(str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error


def no_pipe(path: Path) -> Path:
    """The path of a file or folder that is to be opened, or of none.

    Raises:
        OSError: it is a named pipe, which keeps who opens it waiting for ever.
    """
    if path.is_fifo():
        raise OSError(errno.EINVAL, "it is a named pipe, and must be a regular file", str(path))
    return path


def read_text(path: Path) -> str:
    """The text of a user's file: UTF-8, with or without the mark that Windows puts in front.

    Raises:
        UserError: it cannot be read, or is no such text.
    """
    try:
        return no_pipe(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {reason_of(error)}; expected text in UTF-8") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Writes the file in one piece."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


# Files that begin with a checksum of the rest and of what they are, such as a run and its stage.
#
# A damaged file, or one that was put in another's place, is never believed.
#
# For what a program wrote to read it again: states of fits and rounds, and caches. A damaged one is
# named on stderr and taken for missing: all of it can be made again, and comes out the same.

WORDS = b"onefold sha256 "
SEAL_BYTES = len(WORDS) + 64 + 1

log = logging.getLogger(__name__)


def write_sealed(path: Path, content: bytes | memoryview, about: str = "") -> None:
    """Writes the content in one piece, behind its checksum; its folder is made if need be.

    ``about`` says what the file is. Only a reader that expects the same accepts it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(_seal(content, about))
        file.write(content)


def _seal(content: bytes | memoryview, about: str) -> bytes:
    sha = checksum_of(about)
    sha.update(content)
    return WORDS + sha.hexdigest().encode() + b"\n"


def checksum_of(about: str) -> "hashlib._Hash":
    """The checksum of a file that is to be what ``about`` says, before its content is added."""
    return hashlib.sha256(f"{len(about)} {about}".encode() if about else b"")


def read_sealed(path: Path, about: str = "") -> bytes | None:
    """The content; None where there is no file. A damaged or foreign one is named, and None too."""
    try:
        whole = b"" if path.is_fifo() else path.read_bytes()  # see no_pipe
    except FileNotFoundError:
        return None
    seal, content = whole[:SEAL_BYTES], whole[SEAL_BYTES:]
    if seal != _seal(content, about):
        log.warning("%s is damaged%s: it is ignored, and made again", path, about and " or foreign")
        return None
    return content


# The directory of Onefold's caches: data sets as arrays, and measurements of training steps.

_warned: set[Path] = set()


def cache_dir() -> Path:
    """Below the user's cache directory, as XDG_CACHE_HOME names it. It may not exist yet."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "onefold"


def write_cache(file: Path, text: str) -> None:
    """Writes what may be lost: where it cannot be written, one line on stderr says so, once."""
    try:
        write_sealed(file, text.encode())
    except OSError as error:
        if file not in _warned:
            _warned.add(file)
            print(
                f"onefold: warning: going on without a cache: {disk_line(error)}", file=sys.stderr
            )
