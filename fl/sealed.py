"""Files that begin with a checksum of the rest and of what they are, such as a run and its stage.

A damaged file, or one that was put in another's place, is never believed.

For what a program wrote to read it again: states of fits and rounds, and caches. A damaged one is
named on stderr and taken for missing: all of it can be made again, and comes out the same.
"""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fl.whole_files import replacing

WORDS = b"onefold sha256 "
SEAL_BYTES = len(WORDS) + 64 + 1

log = logging.getLogger(__name__)


class Sealing:
    """Writes the content, and keeps its checksum."""

    def __init__(self, file: IO[bytes], about: str = "") -> None:
        self._file, self._sha = file, checksum_of(about)
        file.write(bytes(SEAL_BYTES))

    def write(self, content: bytes) -> int:
        """Writes more of the content, as a file does."""
        self._sha.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        """Hands what was written to the system."""
        self._file.flush()

    def seal(self) -> None:
        """Writes the checksum in front of the content."""
        self._file.seek(0)
        self._file.write(WORDS + self._sha.hexdigest().encode() + b"\n")


@contextmanager
def sealed(path: Path, about: str = "") -> Iterator[Sealing]:
    """A file to write to, which replaces ``path`` at the end; its folder is made if need be.

    ``about`` says what the file is. Only a reader that expects the same accepts it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        writer = Sealing(file, about)
        yield writer
        writer.seal()


def write_sealed(path: Path, content: bytes) -> None:
    """Writes the content in one piece."""
    with sealed(path) as file:
        file.write(content)


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
    sha = checksum_of(about)
    sha.update(content)
    if seal != WORDS + sha.hexdigest().encode() + b"\n":
        log.warning("%s is damaged%s: it is ignored, and made again", path, about and " or foreign")
        return None
    return content
