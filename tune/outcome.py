"""A sweep's outcome: best against default, and what is printed, drawn and kept of all trials."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console
from rich.table import Column, Table

from cluster.hardware.inventory import Inventory
from cluster.run.options import Launch
from cluster.run.prepare import prepare
from fl.json_files import JsonObject, SettingValues, write_json
from fl.report.words import NONE, duration, percent, points, tally
from tune.options import SweepOptions
from tune.rows import TrialRow, ranked
from tune.trials import DEFAULT, derive, run_trial

BEST = "best"
FINAL = "final"
"""Folder of the runs on the test split, each named after its configuration and seed."""


def compare(
    launch: Launch, settings: SettingValues, inventory: Inventory, *, seeds: int
) -> dict[str, JsonObject]:
    """Runs both configurations with each seed, from the launch's on, on all training images.

    Returns the test accuracies of ``default`` and ``best``, and the ``gain``, their differences
    seed by seed, each as :func:`spread` has them.

    Args:
        launch: the sweep's.
        settings: the best; empty if that is the default, which is then run only once per seed.
        inventory: what they run on.
        seeds: how many.
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
            line = f"trial {row.name} failed: {row.reason}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def listed(settings: SettingValues) -> str:
    """Settings and their values, in a line."""
    shown = {n: f"{v:.4g}" if isinstance(v, float) else str(v) for n, v in settings.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items())


def print_summary(result: JsonObject, folder: Path, console: Console) -> None:
    """Prints the last lines: what was saved, what is best, and what it gains.

    Args:
        result: the content of ``result.json``.
        folder: the sweep's.
        console: where to.
    """
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
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


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
