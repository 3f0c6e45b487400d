"""The directory of Onefold's caches: data sets as arrays, and measurements of training steps."""

import os
import sys
from pathlib import Path

from fl.disk_errors import disk_line
from fl.sealed import write_sealed

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
