"""Files that are whole: writes them atomically, and opens nothing that would never end."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fl.disk_errors import about
from fl.errors import UserError, reason_of


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
    except OSError as error:
        if error.filename == str(temporary):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Inside, an error of the file system that does not know its file is about ``path``."""
    try:
        yield
    except Exception as error:
        found = about(error, path)
        if found is None:
            raise
        raise found from error


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
