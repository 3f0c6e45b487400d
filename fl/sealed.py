"""Files that begin with a checksum of the rest: what was damaged on the way is never believed.

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

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._sha = file, hashlib.sha256()
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
def sealed(path: Path) -> Iterator[Sealing]:
    """A file to write to, which replaces ``path`` at the end; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        writer = Sealing(file)
        yield writer
        writer.seal()


def write_sealed(path: Path, content: bytes) -> None:
    """Writes the content in one piece."""
    with sealed(path) as file:
        file.write(content)


def read_sealed(path: Path) -> bytes | None:
    """The content; None where there is no such file, or a damaged one, which is named."""
    try:
        whole = b"" if path.is_fifo() else path.read_bytes()  # see no_pipe
    except FileNotFoundError:
        return None
    seal, content = whole[:SEAL_BYTES], whole[SEAL_BYTES:]
    if seal != WORDS + hashlib.sha256(content).hexdigest().encode() + b"\n":
        log.warning("%s is damaged: it is ignored, and made again", path)
        return None
    return content
