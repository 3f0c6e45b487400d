"""The report of a scalability study: its table, the slopes of its curves, and its pictures."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, PercentFormatter
from rich.table import Table

from fl.json_files import SettingValues
from fl.report import style
from fl.report.words import duration, percent, size

Figures = SettingValues
LABELS = {
    "seconds": "seconds",
    "memory": "peak memory in bytes",
    "bytes": "bytes between clients and server",
    "rate": "clients per second",
}
"""Of the pictures' vertical axes."""
MOST_MARKED = 6
"""Numbers of clients that an axis has room for."""
MEMORY = {
    "driver": "driver_peak_bytes",
    "workers": "workers_peak_bytes",
    "device": "device_peak_bytes",
}


def curves(cells: Sequence[Figures]) -> dict[str, dict[str, dict[int, float]]]:
    """Each picture's curves: the mean over seeds by number of clients. Zeros are left out."""
    phases = {phase: 0 for cell in cells for phase in cell["seconds"]}
    found = {
        "seconds": {phase: _curve(cells, _item("seconds", phase)) for phase in phases},
        "memory": {name: _curve(cells, _item(key)) for name, key in MEMORY.items()},
        "bytes": {name: _curve(cells, _item(f"bytes_{name}")) for name in ("up", "down")},
        "rate": {"clients per second": _curve(cells, _rate)},
    }
    return {name: {n: c for n, c in group.items() if c} for name, group in found.items()}


def slopes(cells: Sequence[Figures]) -> dict[str, dict[str, float]]:
    """Each curve's exponent: the power of the clients' number by which it grows (least squares)."""
    return {
        picture: {name: _slope(c) for name, c in group.items() if len(c) > 1}
        for picture, group in curves(cells).items()
    }


def tables(cells: Sequence[Figures]) -> list[Table]:
    """A row for each run, in one table of times and in one of memory and bytes, as 80 columns have
    no room for both."""
    return [_times(cells), _sizes(cells)]


def _times(cells: Sequence[Figures]) -> Table:
    names = ("local", "server", "total", "clients/s", "accuracy")
    shown = _table("clients", "seed", "samples", *names)
    notes = []
    if any(c["drawn_with_replacement"] for c in cells):
        notes.append("* drawn with replacement: the data set has fewer samples")
    if any(c["trained"] < c["clients"] for c in cells):
        notes.append("† some clients were reused from the store: no time to compare")
    shown.caption = "; ".join(notes) or None
    for c in cells:
        samples = f"{c['samples']:,}{'*' if c['drawn_with_replacement'] else ''}"
        reused = "†" if c["trained"] < c["clients"] else ""
        figures = texts(c)
        figures |= {name: figures[name] + reused for name in ("local", "clients/s")}
        row = (figures[name] for name in names)
        shown.add_row(figures["clients"], str(c["seed"]), samples, *row)
    return shown


def _sizes(cells: Sequence[Figures]) -> Table:
    names = ("driver", "workers", "device", "up", "down")
    shown = _table("clients", "seed", *names)
    for c in cells:
        sizes = texts(c)
        shown.add_row(sizes["clients"], str(c["seed"]), *(sizes[name] for name in names))
    return shown


def texts(cell: Figures) -> dict[str, str]:
    """A run's figures as they are shown, by the tables' columns."""
    seconds, device = cell["seconds"], cell["device_peak_bytes"]
    workers = cell["workers"]
    return {
        "clients": f"{cell['clients']:,}",
        "local": duration(seconds["local"]),
        "server": duration(sum(s for n, s in seconds.items() if n not in ("local", "total"))),
        "total": duration(seconds["total"]),
        "clients/s": f"{cell['clients_per_second']:.1f}",
        "accuracy": percent(cell["accuracy"]),
        "driver": size(cell["driver_peak_bytes"]),
        "workers": f"{workers} x {size(cell['workers_peak_bytes'] / max(1, workers))}",
        "device": size(device) if device else "none",
        "up": size(cell["bytes_up"]),
        "down": size(cell["bytes_down"]),
    }


def _table(*columns: str) -> Table:
    shown = Table(box=None, padding=(0, 1, 0, 0))
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    return shown


def pictures(cells: Sequence[Figures]) -> dict[str, bytes]:
    """PNG files by name: logarithmic on both axes, each curve with its slope; and accuracy.

    What varies by less than a decade has an axis that begins at 0, as logarithmic ticks so close
    would read the same.
    """
    drawn = {n: _log_log(group, LABELS[n]) for n, group in curves(cells).items() if group}
    return {**drawn, "accuracy": _accuracy(_curve(cells, _item("accuracy")))}


def _log_log(group: Mapping[str, Mapping[int, float]], label: str) -> bytes:
    figure, axes = style.new_axes(style.HALF, 3.6, grid="both")
    for name, curve in group.items():
        slope = f", slope {_slope(curve):.2f}" if len(curve) > 1 else ""
        (line,) = axes.plot(list(curve), list(curve.values()), "o-", label=name + slope)
        if name == "total":
            line.set(color=style.INK, linestyle=(0, (4, 3)))
    axes.set(ylabel=label)
    spelled = size if "bytes" in label else "{:,g}".format
    decades = _decades(group)
    if decades < 1:
        axes.set_ylim(bottom=0)
    else:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        if "bytes" in label or decades < 2:
            axes.yaxis.set_minor_formatter(lambda value, position: spelled(value))
            axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.yaxis.set_major_formatter(lambda value, position: spelled(value))
    return _finished(figure, axes, {k for curve in group.values() for k in curve})


def _decades(group: Mapping[str, Mapping[int, float]]) -> float:
    values = [value for curve in group.values() for value in curve.values()]
    return math.log10(max(values) / min(values))


def _accuracy(curve: Mapping[int, float]) -> bytes:
    figure, axes = style.new_axes(style.HALF, 3.6, grid="both")
    axes.plot(list(curve), list(curve.values()), "o-", color=style.GLOBAL_MODEL, label="accuracy")
    axes.set(ylim=(0, 1), ylabel="test accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return _finished(figure, axes, curve)


def _finished(figure: Figure, axes: Axes, numbers: Iterable[int]) -> bytes:
    """The picture; marks the study's own numbers of clients, unless they are too many to read."""
    axes.set(xscale="log", xlabel="clients")
    marked = sorted(numbers)
    if len(marked) <= MOST_MARKED:
        axes.set_xticks(marked)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(which="both", labelsize=style.TICK, labelcolor=style.INK)
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    style.legend_above(axes, columns=2)  # where no curve can run through it
    return style.png(figure)


def _item(*path: str) -> Callable[[Figures], float]:
    def item(cell: Figures) -> float:
        value: Any = cell
        for name in path:
            value = value.get(name)
        return value or 0.0

    return item


def _rate(cell: Figures) -> float:
    whole: bool = cell["trained"] == cell["clients"]
    return float(cell["clients_per_second"]) if whole else 0.0


def _curve(cells: Sequence[Figures], value: Callable[[Figures], float]) -> dict[int, float]:
    by_clients: dict[int, list[float]] = {}
    for cell in cells:
        if value(cell) > 0:
            by_clients.setdefault(cell["clients"], []).append(value(cell))
    return {k: float(np.mean(values)) for k, values in sorted(by_clients.items())}


def _slope(curve: Mapping[int, float]) -> float:
    return float(np.polyfit(np.log(list(curve)), np.log(list(curve.values())), 1)[0])
