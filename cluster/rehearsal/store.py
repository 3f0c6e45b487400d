"""The uploads of a rehearsal, which no run could use: in memory, each once for all of its kind."""

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from fl.federation import Job
from fl.packed import Packed


class NoStore:
    """:class:`fl.federation.UpdateStore` that has nothing trained before."""

    def __init__(self) -> None:
        self._kept: dict[str, Packed] = {}
        self._numbers = count()

    def key(self, job: Job) -> str:
        """A key that no job had before."""
        return f"{job.round}/{next(self._numbers)}"

    def get(self, key: str, client: int) -> Packed | None:
        """What was put there."""
        return self._kept.get(key)

    def put(self, key: str, client: int, packed: Packed) -> None:
        """Keeps the update."""
        self._kept[key] = packed

    def file(self, key: str) -> Path | None:
        """No update has a file."""
        return None

    @contextmanager
    def locked(self, keys: Mapping[int, str]) -> Iterator[list[int]]:
        """All of them: nobody else trains here."""
        yield list(keys)

    def end_round(self, number: int, needed: Set[str] = frozenset()) -> None:
        """Forgets what is not ``needed``."""
        self._kept = {key: packed for key, packed in self._kept.items() if key in needed}
