"""An error of the file system is one line: which file, why, and what to do."""

import errno
import os
from pathlib import Path

import pytest

from fl.errors import UserError
from fl.whole_files import about, disk_line, is_of_disk, refused_by_disk

LINES = [
    (errno.ENOSPC, "No space left on device; make room there"),
    (errno.EDQUOT, "Disk quota exceeded; make room there"),
    (errno.EACCES, "Permission denied; allow writing there, or choose another folder"),
    (errno.EROFS, "Read-only file system; allow writing there, or choose another folder"),
    (errno.ENOTDIR, "Not a directory; move away what is there, or choose another folder"),
    (errno.EIO, "Input/output error"),
]


@pytest.mark.parametrize(("code", "end"), LINES)
def test_the_line_names_file_reason_and_what_to_do(code: int, end: str) -> None:
    assert disk_line(OSError(code, os.strerror(code), "runs/a")) == f"cannot use runs/a: {end}"


@pytest.mark.parametrize("file", ["a\nb\x1b[1m", "x" * 5000, b"\xff", 3])
def test_the_line_is_short_and_printable_whatever_the_file(file: object) -> None:
    name = file if isinstance(file, str | bytes) else str(file)
    line = disk_line(OSError(errno.EIO, "bad", name))
    assert line.isprintable()
    assert len(line) < 400


def test_sockets_and_pipes_are_not_of_the_disk() -> None:
    assert not is_of_disk(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert not is_of_disk(ConnectionResetError(errno.ECONNRESET, "reset"))
    with pytest.raises(BrokenPipeError), refused_by_disk():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    with pytest.raises(UserError, match="cannot use a: Is a directory"), refused_by_disk():
        raise IsADirectoryError(errno.EISDIR, "Is a directory", "a")


def test_the_reason_is_found_behind_what_libraries_raise() -> None:
    def of_torch() -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 704 vs 598")

    with pytest.raises(RuntimeError) as raised:
        of_torch()
    rust = ValueError("I/O error: No space left on device (os error 28)")
    for error in (raised.value, rust, OSError(errno.ENOSPC, "No space left on device")):
        found = about(error, Path("state.pt"))
        assert found is not None
        assert (found.errno, found.filename) == (errno.ENOSPC, "state.pt")
    assert about(RuntimeError("of another kind"), Path("state.pt")) is None
