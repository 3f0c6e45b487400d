"""The plots of a run, each a matplotlib figure made of plain data. Nothing here reads a file.

Figures are built without pyplot: no global state, no display, safe in any process.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from fl.report import style
from fl.report.events import RoundRow
from fl.report.words import duration, percent, size

MANY = 16  # a plot with a bar for each of more things than this takes the page's whole width
STEPS = {"epoch": "fusion epoch", "round": "round"}
LEAST_SPAN = 0.05  # of the accuracy axis
MOST_BUBBLES = 150  # clients: more would have bubbles that nobody sees
MOST_COLUMNS = 300  # of the map that many clients have in place of bubbles
MOST_APART = 300  # bars with a gap between them
WIDEST_BUBBLE = 26.0  # diameter in points
LOG_FROM = 20.0  # uploads that differ by more than this factor go on a logarithmic axis


def accuracy_curve(
    accuracy: Mapping[int, float], start: float | None = None, step: str = "epoch"
) -> Figure:
    """Accuracy after each fusion epoch or round; `start`, that before the first, is drawn at 0."""
    figure, axes = style.new_axes(style.HALF, 3.4)
    curve = dict(accuracy) if start is None else {0: start, **accuracy}
    colour = style.GLOBAL_MODEL
    axes.plot(list(curve), list(curve.values()), color=colour, linewidth=2)
    last = max(accuracy)
    best = max(accuracy, key=accuracy.__getitem__)
    if start is not None:
        _mark(axes, 0, start, f"start {percent(start)}", marker="o", color="white")
    if best != last:
        label = f"best {percent(accuracy[best])}, {step} {best}"
        _mark(axes, best, accuracy[best], label, marker="D", color=style.BEST)
    label = f"last {percent(accuracy[last])}, {step} {last}"
    _mark(axes, last, accuracy[last], label, marker="o", color=colour)
    axes.set(xlabel=STEPS[step], ylabel="accuracy", ylim=span(list(curve.values())))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(frameon=False, fontsize=style.TICK, labelcolor=style.INK)
    return figure


def span(shares: Sequence[float]) -> tuple[float, float]:
    """Limits around the shares, wide enough that noise does not look like a trend."""
    middle = (min(shares) + max(shares)) / 2
    half = max(max(shares) - min(shares), LEAST_SPAN) * 0.56
    return max(middle - half, -0.004), min(middle + half, 1.004)


def _mark(axes: Axes, x: int, y: float, label: str, marker: str, color: str) -> None:
    edge = style.MUTED if color == "white" else "white"
    (mark,) = axes.plot([x], [y], marker, label=label, color=color, markersize=9, zorder=3)
    mark.set(markeredgecolor=edge, clip_on=False)


def class_accuracy(
    values: Sequence[float | None],
    class_names: Sequence[str],
    overall: float,
    things: str = "class",
) -> Figure:
    """A bar per class (or of other things) and a line at the overall accuracy.

    None: the test split lacks the class.
    """
    heights = np.array(values, dtype=float)
    figure, axes = style.new_axes(width_of(len(heights)), 3.4)
    axes.bar(range(len(heights)), heights, color=style.GLOBAL_MODEL, width=0.72)
    axes.axhline(overall, color=style.INK, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.set(xlabel=things, ylabel="accuracy", ylim=(0, 1), xlim=(-0.7, len(heights) - 0.3))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    style.name_columns(figure, axes, list(class_names))
    return figure


def width_of(things: int) -> float:
    """The width of a plot with a bar or a dot for each of so many things."""
    return style.WIDE if things > MANY else style.HALF


def partition_bubbles(
    counts: NDArray[np.int64], roles: Sequence[str], class_names: Sequence[str]
) -> Figure:
    """Clients across, classes up; a bubble's area is the number of samples."""
    clients, classes = counts.shape
    height = _height_of(classes)
    figure, axes = style.new_axes(style.WIDE, height, grid="both")
    # The largest bubble just fills its cell; about an inch is left for the labels.
    cell = 72 * min((style.WIDE - 1.2) / clients, (height - 1.2) / classes)
    largest = min(cell, WIDEST_BUBBLE) ** 2
    client, label = np.nonzero(counts)
    held = counts[client, label]
    colours = [style.role_colour(roles[index]) for index in client.tolist()]
    sizes = largest * held / max(counts.max(), 1)
    bubbles = axes.scatter(client, label, s=sizes, c=colours, linewidths=0)
    style.pixels_if_many(bubbles, len(held))
    axes.set(xlabel="client", ylabel="class")
    axes.set(xlim=(-0.6, clients - 0.4), ylim=(-0.7, classes - 0.3))
    axes.spines[["left", "bottom"]].set_visible(False)
    style.name_rows(figure, axes, list(class_names))
    style.name_columns(figure, axes, [str(index) for index in range(clients)])
    largest_label = f"{counts.max():,} samples"
    _role_legend(axes, roles, (largest_label, math.sqrt(largest)))
    return figure


def partition_map(counts: NDArray[np.int64], class_names: Sequence[str]) -> Figure:
    """Clients across in columns of several, classes up; a cell's shade is the mean of samples that
    its clients have of its class, by the square root."""
    clients, classes = counts.shape
    figure, axes = style.new_axes(style.WIDE, _height_of(classes))
    width = per_column(clients)
    firsts = np.arange(0, clients, width)
    together = np.minimum(width, clients - firsts)
    columns = np.add.reduceat(counts, firsts, axis=0) / together[:, None]
    full = np.array(to_rgb(style.MANY_CLIENTS))

    def shades(means: NDArray[np.float64]) -> NDArray[np.float64]:
        return 1 - np.sqrt(means / max(columns.max(), 1e-9))[..., None] * (1 - full)

    where = (-0.5, len(columns) * width - 0.5, -0.5, classes - 0.5)
    axes.imshow(shades(columns.T), extent=where, aspect="auto", origin="lower")
    axes.grid(visible=False)
    axes.set(xlabel="client", ylabel="class", xlim=(-0.5, clients - 0.5))
    style.name_rows(figure, axes, list(class_names))
    values = columns.max() * np.array([0.01, 0.1, 1.0])
    handles = [
        Patch(color=shade, label=f"{value:.2g} samples")
        for value, shade in zip(values, shades(values).tolist(), strict=True)
    ]
    style.legend_above(axes, len(handles), handles)
    return figure


def _height_of(classes: int) -> float:
    """Inches of a picture with a row for each class."""
    return min(max(3.6, 1.2 + 0.33 * classes), 12.0)


def per_column(clients: int) -> int:
    """Clients in a column of :func:`partition_map`."""
    return -(-clients // MOST_COLUMNS)


def client_bytes(bytes_up: Mapping[int, int], roles: Sequence[str]) -> Figure:
    """What each client sent; `roles` in the order of the mapping."""
    sent = np.array(list(bytes_up.values()), dtype=float)
    figure, axes = style.new_axes(width_of(len(sent)), 3.4)
    colours = [style.role_colour(role) for role in roles]
    places = np.arange(len(sent))
    if is_spread(bytes_up):
        # No bars: on a logarithmic axis, which has no zero, a bar's length means nothing.
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        dots = axes.scatter(places, sent, c=colours, s=60, linewidths=0)
        style.pixels_if_many(dots, len(sent))
        axes.margins(y=0.15)
    else:
        wide = np.full(len(sent), 0.72 if len(sent) <= MOST_APART else 1.0)
        bars = np.stack([places - wide / 2, np.zeros(len(sent)), wide, sent], axis=1)
        style.add_bars(axes, bars, facecolors=colours)
        axes.set_ylim(0, 1.05 * sent.max())
    axes.set(xlabel="client", ylabel="sent to the server", xlim=(-0.7, len(sent) - 0.3))
    axes.yaxis.set_major_formatter(lambda value, _: size(value).replace(".0 ", " "))
    style.name_columns(figure, axes, [str(client) for client in bytes_up])
    _role_legend(axes, roles)
    return figure


def is_spread(bytes_up: Mapping[int, int]) -> bool:
    """Whether the uploads differ so much that they take a logarithmic axis."""
    sent = [count for count in bytes_up.values() if count > 0]
    return bool(sent) and max(sent) > LOG_FROM * min(sent)


def phase_times(seconds: Mapping[str, float]) -> Figure:
    """A bar per phase, in their order; the rest of "total" is shown as "other"."""
    phases = {name: spent for name, spent in seconds.items() if name != "total" and spent > 0}
    total = seconds.get("total", sum(phases.values()))
    other = total - sum(phases.values())
    if other > 0.01 * total:
        phases["other"] = other
    figure, axes = style.new_axes(style.HALF, 3.4, grid="x")
    bars = axes.barh(range(len(phases)), list(phases.values()), color=style.TIME, height=0.62)
    labels = [f"{duration(spent)}  ({spent / total:.0%})" for spent in phases.values()]
    axes.bar_label(bars, labels, padding=5, fontsize=style.TICK, color=style.INK)
    axes.set(xlabel="wall time (seconds)", xlim=(0, 1.45 * max(phases.values(), default=1.0)))
    style.name_rows(figure, axes, list(phases))
    axes.invert_yaxis()
    axes.spines["left"].set_visible(False)
    return figure


def round_times(rounds: Sequence[RoundRow]) -> Figure:
    """A stacked bar per round, of its seconds by kind."""
    figure, axes = style.new_axes(style.HALF, 3.4)
    numbers, below = [r.number for r in rounds], np.zeros(len(rounds))
    for part, colour in style.PARTS.items():
        spent = np.array([r.seconds.get(part, 0.0) for r in rounds])
        axes.bar(numbers, spent, bottom=below, color=colour, width=0.8, label=part)
        below += spent
    axes.set(xlabel="round", ylabel="seconds")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.legend_above(axes, len(style.PARTS))
    return figure


def _role_legend(axes: Axes, roles: Sequence[str], bubble: tuple[str, float] | None = None) -> None:
    """Names the roles' colours above the axes, and the size of one bubble (label, diameter)."""
    dots = [(role, 9.0, style.role_colour(role)) for role in sorted(set(roles))]
    if bubble is not None:
        dots.append((*bubble, style.RULE))
    largest = max(diameter for _, diameter, _ in dots) / style.TICK
    handles = [
        Line2D([], [], marker="o", linestyle="", label=label, markersize=diameter, color=colour)
        for label, diameter, colour in dots
    ]
    height = {"handlelength": largest, "handleheight": largest, "handletextpad": 0.5}
    style.legend_above(axes, len(handles), handles, **height)
