"""``--track``: a run's settings, curves, figures and report go to an experiment tracker too.

A tracker is beside the point of a run: whatever it raises ends its own part, with one line on
stderr, and never the run.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from cluster.run.command_line import flatten
from cluster.run.options import Launch
from cluster.run.run_dir import nested
from fl.events import Epoch, Event, RoundEnd
from fl.json_files import SettingValues

# An event's figures by tag, for whatever draws curves: TensorBoard, Weights & Biases, MLflow.


@dataclass(frozen=True)
class Scalars:
    """Figures by tag, as in ``fusion/loss``, all of one step: an epoch or a round."""

    step: int = 0
    values: Mapping[str, float] = field(default_factory=dict)


def scalars_of(event: Event) -> Scalars:
    """The figures of an epoch at the server, or of a round; none of other events."""
    match event:
        case Epoch():
            # A fit of a later round goes on where that of the round before ended.
            step = (event.round - 1) * event.epochs + event.epoch
            stage = event.stage
            return Scalars(step, {f"{stage}/loss": event.loss, f"{stage}/accuracy": event.accuracy})
        case RoundEnd():
            seconds = {f"rounds/{part}_seconds": took for part, took in event.took.items()}
            return Scalars(event.round, {"rounds/accuracy": event.accuracy, **seconds})
    return Scalars()


def final_figures(result: SettingValues) -> dict[str, float]:
    """The numbers of ``result.json`` at its top level, as ``final/NAME``, and each phase's seconds.

    Under ``final/``, since some trackers make folders of tags, and a run has ``rounds/accuracy``.
    """
    seconds = {f"seconds/{name}": took for name, took in result["seconds"].items()}
    figures = {**result, **seconds}
    return {
        f"final/{name}": float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


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
