"""Saves a run's events as ``metrics.jsonl``."""

from pathlib import Path

from fl.events import ClientProgress, Event, as_line
from fl.whole_files import named_errors, no_pipe


class JsonLines:
    """Appends each event to ``metrics.jsonl`` as it happens, but for clients' progress, of which
    there is too much, and which depends on the clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = no_pipe(path).open("a", buffering=1)

    def __call__(self, event: Event) -> None:
        """Writes one line."""
        if isinstance(event, ClientProgress):
            return
        with named_errors(self._path):
            self._file.write(as_line(event))

    def close(self) -> None:
        """Closes the file."""
        with named_errors(self._path):
            self._file.close()
