"""What happens in a run, as named events: the one channel to terminal, files and TensorBoard."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Event = dict[str, Any]
Listener = Callable[[Event], None]


class Events:
    """Stamps events with the seconds since the run began and hands them to every listener."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners
        self._start = time.perf_counter()
        self.phase_seconds: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._start

    def emit(self, event: str, **fields: Any) -> None:
        """Tells every listener; ``fields`` are JSON values."""
        record = {"event": event, "seconds": round(self.elapsed, 3), **fields}
        for listener in self._listeners:
            listener(record)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times one phase of the run; a phase entered again adds to its time."""
        self.emit("phase", phase=name, status="start")
        begin = time.perf_counter()
        yield
        took = time.perf_counter() - begin
        self.phase_seconds[name] = self.phase_seconds.get(name, 0.0) + took
        self.emit("phase", phase=name, status="end", took=round(took, 3))
