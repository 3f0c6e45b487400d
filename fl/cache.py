"""The directory of Onefold's caches: data sets as arrays, and measurements of training steps."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Below the user's cache directory, as XDG_CACHE_HOME names it. It may not exist yet."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "onefold"
