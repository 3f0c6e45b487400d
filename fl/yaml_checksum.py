"""The checksum at the end of a file of settings that we wrote: a comment, which YAML leaves out."""

import hashlib
import logging
from pathlib import Path

MARK = b"# sha256 of the lines above: "

log = logging.getLogger(__name__)


def with_checksum(text: str) -> bytes:
    """The file's content: the text, and a last line with its checksum."""
    content = text.encode()
    return content + MARK + _checksum(content) + b"\n"


def warn_if_changed(path: Path, content: bytes) -> None:
    """Warns of a file that was edited or damaged after it was written.

    It is still read, since settings are there to be edited. Files without a checksum are a user's.
    """
    above, mark, told = content.rpartition(MARK)
    if mark and told.strip() != _checksum(above):
        log.warning("%s is not what was written: it was edited, or is damaged", path)


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
