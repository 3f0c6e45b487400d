"""``--track``: a run's settings, curves, figures and report go to an experiment tracker too.

A tracker is beside the point of a run: whatever it raises ends its own part, with one line on
stderr, and never the run.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from cluster.run.command_line import flatten
from cluster.run.options import Launch
from cluster.run.run_dir import nested
from cluster.run.scalars import final_figures
from fl.events import Event
from fl.json_values import SettingValues


class Tracker(Protocol):
    """One tracker's view of one run, which begins when it is made."""

    def __call__(self, event: Event) -> None:
        """Takes what the event has to draw."""
        ...

    def finish(self, figures: Mapping[str, float], report: Path) -> None:
        """Takes the final figures and the report of a run that succeeded."""
        ...

    def close(self, *, failed: bool) -> None:
        """Ends the tracker's run."""
        ...


class Tracking:
    """A run's trackers, as one listener; one that raises is left out from then on."""

    def __init__(self, trackers: Sequence[str], run_dir: Path, settings: SettingValues) -> None:
        self._trackers: dict[str, Tracker] = {}
        self._finished = False
        for name in trackers:
            with self._guarded(name):
                self._trackers[name] = _make(name, run_dir, settings)

    def __call__(self, event: Event) -> None:
        """Hands the event to all trackers."""
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                tracker(event)

    def finish(self, result: SettingValues, report: Path) -> None:
        """Hands the final figures and the report to all trackers."""
        self._finished = True
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                tracker.finish(final_figures(result), report)

    def close(self) -> None:
        """Ends all trackers' runs: as failed ones, unless :meth:`finish` was called."""
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                tracker.close(failed=not self._finished)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            print(
                f"onefold: the run goes on without {name}: {type(error).__name__}: {reason}",
                file=sys.stderr,
            )
            if tracker := self._trackers.pop(name, None):
                with suppress(Exception):
                    tracker.close(failed=True)


@contextmanager
def tracked(launch: Launch, run_dir: Path) -> Iterator[Tracking]:
    """The trackers that the launch asks for, until the context ends."""
    tracking = Tracking(launch.track, run_dir, flatten(nested(launch.run)))
    try:
        yield tracking
    finally:
        tracking.close()


def _make(name: str, run_dir: Path, settings: SettingValues) -> Tracker:
    """Imports the tracker's file, which imports its package: that takes a second or two."""
    module = import_module(f"cluster.run.track_{name}")
    return cast(Tracker, module.start(run_dir, settings))
