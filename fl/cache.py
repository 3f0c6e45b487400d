"""Where we keep what can be made again."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """In the user's cache directory, as XDG_CACHE_HOME names it. It may not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "onefold"
