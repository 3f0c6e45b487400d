"""A sweep's outcome: printed on the terminal, as ``result.json``, and for TensorBoard."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from cluster.hardware.inventory import Inventory
from cluster.run.options import Launch
from cluster.run.prepare import prepare
from cluster.run.run_dir import versions
from fl.config import RunConfig
from fl.json_files import SettingValues, write_json
from fl.report.words import duration, percent, points, tally
from fl.spaces import Space
from tune.options import SweepOptions
from tune.rows import TrialRow, listed
from tune.trials import DEFAULT, derive, run_trial

# A sweep's final comparison: best and default configuration on the test split, over seeds.

BEST = "best"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Values over seeds, their mean, and their standard deviation (None for one value)."""

    values: tuple[float, ...]
    mean: float
    std: float | None


def compare(
    launch: Launch, settings: SettingValues, inventory: Inventory, *, seeds: int
) -> dict[str, Spread]:
    """Runs both configurations with each seed, from the launch's on, on all training images.

    Returns the test accuracies of ``default`` and ``best``, and the ``gain``, their differences
    seed by seed.

    Args:
        launch: the sweep's.
        settings: the best; empty if that is the default, which is then run only once per seed.
        inventory: what they run on.
        seeds: how many.
    """

    def accuracy(changes: SettingValues, label: str, seed: int) -> float:
        changes = {**changes, "seed": seed}
        own = derive(launch, changes, f"{launch.name}/final/{label}-seed{seed}")
        result = run_trial(
            own, changes, prepare_with=lambda run: prepare(run, inventory), report=True
        )
        return float(result["accuracy"])

    accuracies = {
        label: tuple(accuracy(changes, label, launch.run.seed + i) for i in range(seeds))
        for label, changes in ((DEFAULT, {}), (BEST, settings))
        if changes or label == DEFAULT
    }
    default = accuracies[DEFAULT]
    best = accuracies.get(BEST, default)
    gains = tuple(b - d for b, d in zip(best, default, strict=True))
    return {"default": spread(default), "best": spread(best), "gain": spread(gains)}


def spread(values: tuple[float, ...]) -> Spread:
    """Mean and sample standard deviation."""
    std = stdev(values) if len(values) > 1 else None
    return Spread(values=values, mean=mean(values), std=std)


NOTHING = "-"
"""In place of a missing figure."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A finished sweep."""

    folder: Path
    options: SweepOptions
    run: RunConfig[Any]
    space: Space
    rows: tuple[TrialRow, ...]
    """The default trial first."""
    best: TrialRow
    comparison: Mapping[str, Spread]
    """Of ``default`` and ``best`` on the test split, and the ``gain``."""
    savings: Mapping[str, float]
    seconds: float
    """Seconds of the trials, since the sweep's last start."""
    partition: str
    """Hash of the trials' partition."""


def print_space(space: Space, console: Console) -> None:
    """Prints the space to search."""
    for name, distribution in space.items():
        console.print(f"{name}: {distribution}", highlight=False, markup=False)


def print_trials(rows: Sequence[TrialRow], options: SweepOptions, console: Console) -> None:
    """Prints the trials as a table, the best first, then those that did not finish."""
    fixed = [Column(name, no_wrap=True) for name in ("trial", "validation", "loss", "epochs")]
    table = Table(*fixed, "settings", Column("status", no_wrap=True), box=None)
    for row in ranked(rows, options):
        table.add_row(
            row.name,
            percent(row.scores["accuracy"]) if row.scores else NOTHING,
            f"{row.scores['loss']:.4f}" if "loss" in row.scores else NOTHING,  # not without a fit
            str(int(row.scores["epoch"])) if row.scores else NOTHING,
            listed(row.settings),
            row.status,
        )
    console.print(table, highlight=False)
    for row in rows:
        if row.status == "failed":
            line = f"trial {row.name} failed: {row.reason}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def ranked(rows: Sequence[TrialRow], options: SweepOptions) -> list[TrialRow]:
    """The best first, then those that did not finish."""

    def place(row: TrialRow) -> tuple[bool, float]:
        score = row.scores.get(options.metric)
        return row.status != "finished", 0.0 if score is None else -options.sign * score

    return sorted(rows, key=place)


def with_spread(spread: Spread) -> str:
    """Mean and standard deviation of accuracies, in percent."""
    return percent(spread.mean) + _plus_minus(spread)


def gained(spread: Spread) -> str:
    """Mean and standard deviation of differences, in percentage points."""
    return points(spread.mean) + _plus_minus(spread)


def _plus_minus(spread: Spread) -> str:
    return "" if spread.std is None else f" ± {100 * spread.std:.1f}"


def print_summary(sweep: Sweep, console: Console) -> None:
    """Prints the last lines: what was saved, what is best, and what it gains."""
    saved, compared = sweep.savings, sweep.comparison
    best, default, gain = compared["best"], compared["default"], compared["gain"]
    lines = (
        "",
        f"clients  {saved['trained']} trainings, {saved['reused']} reused: "
        f"{duration(saved['saved_seconds'])} of training saved",
        f"time     {duration(sweep.seconds)} for the trials; without sharing at least "
        f"{duration(sweep.seconds + saved['least_seconds_saved'])}",
        f"best     trial {sweep.best.name}: {listed(sweep.best.settings)}",
        f"test     best {with_spread(best)}, default {with_spread(default)}, "
        f"gain {gained(gain)} points over {tally(['seed'] * len(gain.values))}",
        f"again    python -m cluster.launch --config {sweep.folder / 'best.yaml'}",
        f"report   {sweep.folder / 'report.html'}",
    )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def write_sweep(sweep: Sweep) -> None:
    """Writes ``result.json``, and the trials as hyperparameters for TensorBoard."""
    run = sweep.run
    content = {
        "method": run.method,
        "dataset": run.dataset,
        "alpha": run.alpha,
        "clients": run.num_clients,
        "seed": run.seed,
        "sweep": asdict(sweep.options),
        "scored_on": "validation",
        "validation": {
            "share": sweep.options.validation,
            "of": "training images, held out from all clients",
            "partition": sweep.partition,
        },
        "space": {name: str(distribution) for name, distribution in sweep.space.items()},
        "trials": [_row(row) for row in sweep.rows],
        "best": {"trial": sweep.best.name, "settings": dict(sweep.best.settings)},
        "test": {label: asdict(spread) for label, spread in sweep.comparison.items()},
        "clients_trained_and_reused": dict(sweep.savings),
        "seconds": sweep.seconds,
        "versions": versions(),
    }
    write_json(sweep.folder / "result.json", content)
    _write_tensorboard(sweep)


def _row(row: TrialRow) -> SettingValues:
    return {
        "name": row.name,
        "status": row.status,
        "reason": row.reason,
        "settings": dict(row.settings),
        **row.scores,
        "seconds": round(row.seconds, 3),
        "clients_trained": len(row.trained),
        "clients_reused": len(row.reused),
    }


def _write_tensorboard(sweep: Sweep) -> None:
    """One point per trial; their curves are in the trials' own directories."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(sweep.folder / "tensorboard")) as writer:
        for row in sweep.rows:
            if row.scores:
                told = [name for name in ("accuracy", "loss") if name in row.scores]
                figures = {f"sweep/{name}": row.scores[name] for name in told}
                writer.add_hparams(dict(row.settings), figures, run_name=row.name)
