"""A sweep's trials as records, read from the trials' directories alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeGuard

from cluster.hardware.inventory import Inventory
from fl.events import ClientEnd, Epoch, Event, RunStart
from fl.federation import Client
from fl.json_files import JsonObject, SettingValues, read_json
from fl.report.read import read_events
from tune.options import METRICS, SweepOptions
from tune.trials import DEFAULT, FAILURE, SETTINGS, read_result


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """A trial: its settings, how far it came, and what its clients cost."""

    name: str
    settings: SettingValues
    """By dotted name; for the default trial the configuration's own values."""
    status: Literal["finished", "stopped", "failed"]
    scores: Mapping[str, float]
    """``accuracy``, ``loss`` and ``epoch`` of its last epoch; empty if it had none."""
    trained: Mapping[int, float]
    """Clients that it trained, and the seconds of each."""
    reused: Mapping[int, float]
    """Clients that it had from the store, and the seconds that each training had taken."""
    seconds: float
    """From its first to its last event, over all its starts."""
    reason: str = ""
    """Why it failed."""

    def to_json(self) -> JsonObject:
        """The trial as ``result.json`` has it."""
        return {
            "name": self.name,
            "status": self.status,
            "reason": self.reason,
            "settings": dict(self.settings),
            **self.scores,
            "seconds": round(self.seconds, 3),
            "clients_trained": len(self.trained),
            "clients_reused": len(self.reused),
        }


def read_rows(folder: Path, defaults: SettingValues) -> list[TrialRow]:
    """The sweep's trials by name, the default first.

    Args:
        folder: holds a directory per trial.
        defaults: the configuration's own values of the settings that are searched.
    """
    paths = sorted(
        (path for path in folder.iterdir() if (path / SETTINGS).exists()),
        key=lambda path: (path.name != DEFAULT, path.name),
    )
    return [_read(path, defaults) for path in paths]


def _read(run_dir: Path, defaults: SettingValues) -> TrialRow:
    events = read_events(run_dir / "metrics.jsonl")
    ends = [event for event in events if isinstance(event, ClientEnd)]
    failure = run_dir / FAILURE
    status: Literal["finished", "stopped", "failed"] = "stopped"
    if read_result(run_dir) is not None:
        status = "finished"
    elif failure.exists():
        status = "failed"
    trained = {end.client: end.seconds_training for end in ends if not end.reused}
    reused = {end.client: end.seconds_training for end in ends if end.reused}
    # A resumed run has started several times, each time at 0.
    before = [last for last, event in pairwise(events) if isinstance(event, RunStart)]
    return TrialRow(
        name=run_dir.name,
        settings={**defaults, **read_json(run_dir / SETTINGS)},
        status=status,
        scores=last_scores(run_dir),
        trained=trained,
        # Clients that it trained itself before it was interrupted do not count as reused.
        reused={client: seconds for client, seconds in reused.items() if client not in trained},
        seconds=sum(event.seconds for event in (*before, *events[-1:])),
        reason=failure.read_text(errors="replace").strip() if status == "failed" else "",
    )


def last_scores(run_dir: Path) -> dict[str, float]:
    """The scores of the run's last epoch; empty if it has none.

    For a finished run without a fit at the server, the accuracy alone, as epoch 0.
    """
    if epochs := [event for event in read_events(run_dir / "metrics.jsonl") if is_epoch(event)]:
        return reported(epochs[-1])
    result = read_result(run_dir)
    return {"epoch": 0, "accuracy": result["accuracy"]} if result else {}


def is_epoch(event: Event) -> TypeGuard[Epoch]:
    """Whether the event ends an epoch of the fit that gives a method's result."""
    return isinstance(event, Epoch) and event.stage == "fusion"


def reported(event: Epoch) -> dict[str, float]:
    """The figures of an epoch that are reported to Tune."""
    return {"accuracy": event.accuracy, "loss": event.loss, "epoch": event.epoch}


def ranked(rows: Sequence[TrialRow], options: SweepOptions) -> list[TrialRow]:
    """Those that finished by their last epoch, the best first, of equal ones the first; then the
    others in the same way."""
    sign = 1 if METRICS[options.metric] == "max" else -1

    def place(row: TrialRow) -> tuple[bool, float]:
        score = row.scores.get(options.metric)
        return row.status != "finished", 0.0 if score is None else -sign * score

    return sorted(rows, key=place)


def savings(
    rows: Sequence[TrialRow], members: Iterable[Client], inventory: Inventory
) -> dict[str, float]:
    """How many clients all trials trained and reused, and the time that this saved.

    Returns:
        ``trained`` and ``reused``, in clients; ``trained_seconds`` of training, summed over
        clients; ``saved_seconds`` that the training of the reused ones had taken; and
        ``least_seconds_saved``, the wall time saved if the machine had been full of clients all
        the time: without reuse the sweep would have taken at least so much longer.
    """
    at_once = {c.id: max(1, inventory.at_once(c.request)) for c in members}
    trained = [seconds for row in rows for seconds in row.trained.values()]
    saved = [(client, seconds) for row in rows for client, seconds in row.reused.items()]
    return {
        "trained": len(trained),
        "reused": len(saved),
        "trained_seconds": round(sum(trained), 3),
        "saved_seconds": round(sum(seconds for _, seconds in saved), 3),
        "least_seconds_saved": round(sum(s / at_once[client] for client, s in saved), 3),
    }
