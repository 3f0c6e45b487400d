"""States of unfinished fits on disk, from which a killed run goes on.

A thread writes them while the fit goes on.
"""

import io
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from fl.fusion.fit import FitConfig, State
from fl.fusion.rank import Report
from fl.json_files import JsonObject
from fl.server import Loss
from fl.whole_files import read_sealed, write_sealed


class Checkpoints:
    """One file per stage, under a key made of all that determines the fit."""

    def __init__(self, directory: Path, *, every: float) -> None:
        """``every``: seconds between two states; 0 for one after each epoch."""
        self.directory = directory
        self.every = every
        self._saved = monotonic()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="states")
        self._writing: Future[None] | None = None

    def load(self, stage: str, key: str) -> list[Report]:
        """The reports up to the last one, which has the state; none if saved under another key."""
        saved = load_tensors(self.path(stage), stage)
        if saved is None or saved["key"] != key:
            return []
        return [_report(fields) for fields in saved["reports"]]

    def save(self, stage: str, key: str, reports: list[Report]) -> None:
        """Has the reports be written, the last with its state; waits for what is written now.

        Raises:
            OSError: what was to be written before could not be.
        """
        self.wait()
        self._saved = monotonic()
        self._writing = self._writer.submit(self._write, stage, key, list(reports))

    def wait(self) -> None:
        """Returns once all is written.

        Raises:
            OSError: it could not be.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, stage: str, key: str, reports: list[Report]) -> None:
        state = {"key": key, "reports": [*map(_fields, reports)]}
        save_tensors(self.path(stage), state, stage)

    def is_due(self, report: Report, config: FitConfig) -> bool:
        """Whether a state is to be saved after this report's epoch."""
        return monotonic() - self._saved >= self.every or report.epoch == config.epochs

    def path(self, stage: str) -> Path:
        """The file of a stage."""
        return self.directory / f"{stage}.state"


def _fields(report: Report) -> JsonObject:
    fields = vars(report).items()
    return {name: own.values if isinstance(own, State) else own for name, own in fields}


def _report(fields: JsonObject) -> Report:
    states = {name: State(own) for name in ("state", "memory") if (own := fields[name]) is not None}
    return Report(**{**fields, **states})


def name_of(loss: Loss) -> str:
    """A record's settings or a function's name, without an address in memory."""
    function = getattr(loss, "__qualname__", None)
    return f"{loss.__module__}.{function}" if function else repr(loss)


def save_tensors(path: Path, value: object, about: str = "") -> None:
    """Writes tensors and plain values; readers see the whole file or none of it.

    ``about``: see :func:`fl.whole_files.write_sealed`.
    """
    content = io.BytesIO()
    torch.save(value, content)
    write_sealed(path, content.getbuffer(), about)


def load_tensors(path: Path, about: str = "") -> Any:
    """What :func:`save_tensors` wrote, on the CPU; None if there is no file, or it is damaged or
    about something else."""
    content = read_sealed(path, about)
    if content is None:
        return None
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
