"""A sweep's trials, read from their directories alone, and its outcome: best against default."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Literal, TypeGuard

from rich.console import Console
from rich.table import Column, Table

from cluster.hardware.inventory import Inventory
from cluster.run.options import Launch
from cluster.run.prepare import prepare
from cluster.run.steps import print_text
from fl.events import ClientEnd, Epoch, Event, RunStart
from fl.federation import Client
from fl.json_files import JsonObject, SettingValues, read_json, read_json_if_whole, write_json
from fl.report.read import read_events
from fl.report.words import NONE, duration, percent, points, tally
from tune.options import METRICS, SweepOptions
from tune.trials import DEFAULT, FAILURE, RESULT, SETTINGS, derive, run_trial

Training = tuple[int, str | None, int]
"""A client, its model and the round: a client trains in each round, and perhaps two models."""


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """A trial: its settings, how far it came, and what its clients cost."""

    name: str
    settings: SettingValues
    """By dotted name; for the default trial the configuration's own values."""
    status: Literal["finished", "stopped", "failed"]
    scores: Mapping[str, float]
    """``accuracy``, ``loss`` and ``epoch`` of its last epoch; empty if it had none."""
    trained: Mapping[Training, float]
    """What it trained, and the seconds of each."""
    reused: Mapping[Training, float]
    """What it had from the store, and the seconds that each training had taken."""
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
    """The trials of the folder by name, the default first. ``defaults``: the configuration's own
    values of the settings that are searched."""
    paths = sorted(
        (path for path in folder.iterdir() if (path / SETTINGS).exists()),
        key=lambda path: (path.name != DEFAULT, path.name),
    )
    return [_row_of(path, defaults) for path in paths]


def _row_of(run_dir: Path, defaults: SettingValues) -> TrialRow:
    events = read_events(run_dir / "metrics.jsonl")
    ends = [event for event in events if isinstance(event, ClientEnd)]
    failure = run_dir / FAILURE
    status: Literal["finished", "stopped", "failed"] = "stopped"
    if read_json_if_whole(run_dir / RESULT) is not None:
        status = "finished"
    elif failure.exists():
        status = "failed"
    found: tuple[dict[Training, float], dict[Training, float]] = {}, {}
    for end in ends:
        found[end.reused][end.client, end.model, end.round] = end.seconds_training
    trained, reused = found
    # A resumed run has started several times, each time at 0.
    before = [last for last, event in pairwise(events) if isinstance(event, RunStart)]
    return TrialRow(
        name=run_dir.name,
        settings={**defaults, **read_json(run_dir / SETTINGS)},
        status=status,
        scores=last_scores(run_dir),
        trained=trained,
        # What it trained itself before it was interrupted does not count as reused.
        reused={own: seconds for own, seconds in reused.items() if own not in trained},
        seconds=sum(event.seconds for event in (*before, *events[-1:])),
        reason=failure.read_text(errors="replace").strip() if status == "failed" else "",
    )


def last_scores(run_dir: Path) -> dict[str, float]:
    """The scores of the run's last epoch; empty if it has none.

    For a finished run without a fit at the server, the accuracy alone, as epoch 0.
    """
    if epochs := [event for event in read_events(run_dir / "metrics.jsonl") if is_epoch(event)]:
        return reported(epochs[-1])
    result = read_json_if_whole(run_dir / RESULT)
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
    """How many trainings of clients all trials did and reused, and the time that this saved.

    Returns:
        ``trained`` and ``reused``, in trainings; ``trained_seconds`` of training, summed over
        clients; ``saved_seconds`` that the reused ones had taken; and
        ``least_seconds_saved``, the wall time saved if the machine had been full of clients all
        the time: without reuse the sweep would have taken at least so much longer.
    """
    at_once = {c.id: max(1, inventory.at_once(c.request)) for c in members}
    trained = [seconds for row in rows for seconds in row.trained.values()]
    saved = [(own[0], seconds) for row in rows for own, seconds in row.reused.items()]
    return {
        "trained": len(trained),
        "reused": len(saved),
        "trained_seconds": round(sum(trained), 3),
        "saved_seconds": round(sum(seconds for _, seconds in saved), 3),
        "least_seconds_saved": round(sum(s / at_once[client] for client, s in saved), 3),
    }


# Best against default, and what is printed, drawn and kept of all trials.

BEST = "best"
FINAL = "final"
"""Folder of the runs on the test split, each named after its configuration and seed."""


def compare(
    launch: Launch, settings: SettingValues, inventory: Inventory, *, seeds: int
) -> dict[str, JsonObject]:
    """Runs the sweep's launch, and it with the best settings, with each seed from its own on, on
    all training images. Without settings the launch is the best, and is run only once per seed.

    Returns the test accuracies of ``default`` and ``best``, and the ``gain``, their differences
    seed by seed, each as :func:`spread` has them.
    """

    def accuracy(changes: SettingValues, label: str, seed: int) -> float:
        changes = {**changes, "seed": seed}
        own = derive(launch, changes, f"{launch.name}/{FINAL}/{label}-seed{seed}")
        result = run_trial(
            own, changes, prepare_with=lambda run: prepare(run, inventory), report=True
        )
        return float(result["accuracy"])

    accuracies = {
        label: [accuracy(changes, label, launch.run.seed + i) for i in range(seeds)]
        for label, changes in ((DEFAULT, {}), (BEST, settings))
        if changes or label == DEFAULT
    }
    default = accuracies[DEFAULT]
    best = accuracies.get(BEST, default)
    gains = [b - d for b, d in zip(best, default, strict=True)]
    return {"default": spread(default), "best": spread(best), "gain": spread(gains)}


def spread(values: Sequence[float]) -> JsonObject:
    """Values over seeds, their ``mean``, and their sample standard deviation ``std``, which one
    value has not."""
    std = stdev(values) if len(values) > 1 else None
    return {"values": [*values], "mean": mean(values), "std": std}


def print_trials(rows: Sequence[TrialRow], options: SweepOptions, console: Console) -> None:
    """Prints the trials as a table, the best first, then those that did not finish."""
    fixed = [Column(name, no_wrap=True) for name in ("trial", "validation", "loss", "epochs")]
    table = Table(*fixed, "settings", Column("status", no_wrap=True), box=None)
    for row in ranked(rows, options):
        table.add_row(
            row.name,
            percent(row.scores["accuracy"]) if row.scores else NONE,
            f"{row.scores['loss']:.4f}" if "loss" in row.scores else NONE,  # not without a fit
            str(int(row.scores["epoch"])) if row.scores else NONE,
            listed(row.settings),
            row.status,
        )
    console.print(table, highlight=False)
    for row in rows:
        if row.status == "failed":
            print_text(f"trial {row.name} failed: {row.reason}", console)


def listed(settings: SettingValues) -> str:
    """Settings and their values, in a line."""
    shown = {n: f"{v:.4g}" if isinstance(v, float) else str(v) for n, v in settings.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items())


def print_summary(result: JsonObject, folder: Path, console: Console) -> None:
    """Prints the last lines of a sweep's result: what was saved, what is best, and its gain."""
    saved, seconds = result["clients_trained_and_reused"], result["seconds"]
    best, default, gain = (result["test"][name] for name in ("best", "default", "gain"))
    lines = (
        "",
        f"clients  {saved['trained']} trainings, {saved['reused']} reused: "
        f"{duration(saved['saved_seconds'])} of training saved",
        f"time     {duration(seconds)} for the trials; without sharing at least "
        f"{duration(seconds + saved['least_seconds_saved'])}",
        f"best     trial {result['best']['trial']}: {listed(result['best']['settings'])}",
        f"test     best {percent(best['mean'])}{_plus_minus(best)}, "
        f"default {percent(default['mean'])}{_plus_minus(default)}, "
        f"gain {points(gain['mean'])}{_plus_minus(gain)} points "
        f"over {tally(['seed'] * len(gain['values']))}",
        f"again    python -m cluster.launch --config {folder / 'best.yaml'}",
        f"report   {folder / 'report.html'}",
    )
    print_text("\n".join(lines), console)


def _plus_minus(spread: JsonObject) -> str:
    return "" if spread["std"] is None else f" ± {100 * spread['std']:.1f}"


def write_sweep(result: JsonObject, folder: Path) -> None:
    """Writes ``result.json``, and the trials as hyperparameters for TensorBoard, a point each."""
    from torch.utils.tensorboard import SummaryWriter

    write_json(folder / "result.json", result)
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for trial in result["trials"]:
            scores = {n: trial[n] for n in ("accuracy", "loss") if n in trial}
            if scores:
                figures = {f"sweep/{name}": value for name, value in scores.items()}
                writer.add_hparams(trial["settings"], figures, run_name=trial["name"])


def write_report(result: JsonObject, folder: Path) -> None:
    """Writes ``report.html``, which compares the final runs: best and default over their seeds."""
    from fl.report.compare import write_comparison  # late: a trial's process needs no matplotlib

    labels = (DEFAULT,) if result["best"]["trial"] == DEFAULT else (BEST, DEFAULT)
    seeds = range(result["seed"], result["seed"] + len(result["test"]["gain"]["values"]))
    runs = [folder / FINAL / f"{label}-seed{seed}" for label in labels for seed in seeds]
    write_comparison(runs, folder / "report.html")
