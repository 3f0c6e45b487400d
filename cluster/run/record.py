"""Saves a run's events as ``metrics.jsonl``."""

import json
from pathlib import Path

from fl.events import ClientProgress, Event
from fl.whole_files import named_errors


class JsonLines:
    """Appends each event to ``metrics.jsonl`` as it happens, but for clients' progress, of which
    there is too much, and which depends on the clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", buffering=1)

    def __call__(self, event: Event) -> None:
        """Writes one line."""
        if isinstance(event, ClientProgress):
            return
        with named_errors(self._path):
            self._file.write(json.dumps(event.to_json()) + "\n")

    def close(self) -> None:
        """Closes the file."""
        with named_errors(self._path):
            self._file.close()
