"""The report of a scalability study: its table, the slopes of its curves, and its pictures."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import mean

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator
from rich.console import Console
from rich.table import Column, Table

from fl.json_files import SettingValues, write_json
from fl.report import style
from fl.report.words import REUSED, duration, percent, size

Figures = SettingValues
LABELS: dict[str, tuple[str, Callable[[float], str]]] = {
    "seconds": ("seconds", "{:,g}".format),
    "memory": ("peak memory in bytes", size),
    "bytes": ("bytes between clients and server", size),
    "rate": ("clients per second", "{:,g}".format),
    "accuracy": ("test accuracy", percent),
}
"""The label of each picture's vertical axis, and how its values are spelled."""
DRAWN = "*"
"""Mark of samples that were drawn with replacement."""
MOST_MARKED = 6
"""Numbers of clients that an axis has room for."""
TIMES = ("clients", "seed", "samples", "local", "server", "total", "clients/s", "accuracy")
SIZES = ("clients", "seed", "driver", "workers", "device", "up", "down")
"""Columns of the two tables, as 80 columns have no room for one."""


def write(folder: Path, cells: Sequence[Figures], console: Console) -> None:
    """Saves the figures of all runs and their slopes, draws them, and prints their tables."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "study.json", {"cells": list(cells), "slopes": slopes(cells)})
    for name, group in curves(cells).items():
        if group:
            (folder / f"{name}.png").write_bytes(_drawn(group, *LABELS[name]))
    for shown in tables(cells):
        console.print(shown)
    console.print(f"figures and pictures in {folder}", highlight=False)


def curves(cells: Sequence[Figures]) -> dict[str, dict[str, dict[int, float]]]:
    """Each picture's curves: the mean over seeds by number of clients. Means that are not above 0,
    as R² may be, are left out: they have no logarithm."""
    values: dict[tuple[str, str], dict[int, list[float]]] = {}
    for cell in sorted(cells, key=itemgetter("clients")):
        for picture, group in _values(cell).items():
            for name, value in group.items():
                if value is not None:
                    curve = values.setdefault((picture, name), {})
                    curve.setdefault(cell["clients"], []).append(value)
    found: dict[str, dict[str, dict[int, float]]] = {picture: {} for picture in LABELS}
    for (picture, name), by_number in values.items():
        if means := {k: m for k, seeds in by_number.items() if (m := mean(seeds)) > 0}:
            found[picture][name] = means
    return found


def _values(cell: Figures) -> dict[str, Mapping[str, float | None]]:
    """A run's values, by picture and curve."""
    return {
        "seconds": {} if _reused(cell) else cell["seconds"],
        "memory": {name: cell[f"{name}_peak_bytes"] for name in ("driver", "workers", "device")},
        "bytes": {name: cell[f"bytes_{name}"] for name in ("up", "down")},
        "rate": {"clients per second": None if _reused(cell) else cell["clients_per_second"]},
        "accuracy": {"accuracy": cell["accuracy"]},
    }


def slopes(cells: Sequence[Figures]) -> dict[str, dict[str, float]]:
    """Each curve's exponent: the power of the clients' number by which it grows (least squares)."""
    return {
        picture: {name: _slope(c) for name, c in group.items() if len(c) > 1}
        for picture, group in curves(cells).items()
    }


def _slope(curve: Mapping[int, float]) -> float:
    return float(np.polyfit(np.log(list(curve)), np.log(list(curve.values())), 1)[0])


def tables(cells: Sequence[Figures]) -> list[Table]:
    """A row for each run, in one table of times and in one of memory and bytes."""
    shown = []
    for names in (TIMES, SIZES):
        columns = (Column(name, justify="right", no_wrap=True) for name in names)
        shown.append(Table(*columns, box=None, padding=(0, 1, 0, 0)))
        for figures in map(texts, cells):
            shown[-1].add_row(*(figures[name] for name in names))
    notes = {
        f"{DRAWN} drawn with replacement: the data set has fewer samples": _is_drawn,
        f"{REUSED} some clients were reused from the store: no time to compare": _reused,
    }
    captions = [note for note, holds in notes.items() if any(map(holds, cells))]
    shown[0].caption = "; ".join(captions) or None
    return shown


def texts(cell: Figures) -> dict[str, str]:
    """A run's figures as they are shown, by the tables' columns; with a mark at what cannot be
    compared."""
    seconds, device, workers = cell["seconds"], cell["device_peak_bytes"], cell["workers"]
    reused = REUSED if _reused(cell) else ""
    return {
        "clients": f"{cell['clients']:,}",
        "seed": str(cell["seed"]),
        "samples": f"{cell['samples']:,}{DRAWN if _is_drawn(cell) else ''}",
        "local": duration(seconds["local"]) + reused,
        "server": duration(sum(s for n, s in seconds.items() if n not in ("local", "total"))),
        "total": duration(seconds["total"]) + reused,
        "clients/s": f"{cell['clients_per_second']:.1f}{reused}",
        "accuracy": percent(cell["accuracy"]),
        "driver": size(cell["driver_peak_bytes"]),
        "workers": f"{workers} x {size(cell['workers_peak_bytes'] / max(1, workers))}",
        "device": size(device) if device else "none",
        "up": size(cell["bytes_up"]),
        "down": size(cell["bytes_down"]),
    }


def _is_drawn(cell: Figures) -> bool:
    return bool(cell["drawn_with_replacement"])


def _reused(cell: Figures) -> bool:
    return bool(cell["trained"] < cell.get("trainings", cell["clients"]))


def _drawn(
    group: Mapping[str, Mapping[int, float]], label: str, spelled: Callable[[float], str]
) -> bytes:
    """A PNG file: logarithmic on both axes, each curve with its slope.

    What varies by less than a decade has an axis that begins at 0, as logarithmic ticks so close
    would read the same.
    """
    figure, axes = style.new_axes(style.HALF, 3.6, grid="both")
    for name, curve in group.items():
        slope = f", slope {_slope(curve):.2f}" if len(curve) > 1 else ""
        axes.plot(list(curve), list(curve.values()), "o-", label=name + slope)
    axes.set(xscale="log", xlabel="clients", ylabel=label)
    values = [value for curve in group.values() for value in curve.values()]
    if max(values) < 10 * min(values):
        axes.set_ylim(bottom=0)
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda value, position: spelled(value))
    numbers = sorted({k for curve in group.values() for k in curve})
    if len(numbers) <= MOST_MARKED:
        axes.set_xticks(numbers)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(which="both", labelsize=style.TICK, labelcolor=style.INK)
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    style.legend_above(axes, columns=2)  # where no curve can run through it
    return style.png(figure)
