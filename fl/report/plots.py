"""The plots of a run, each a matplotlib figure made of plain data. Nothing here reads a file.

Figures are built without pyplot: no global state, no display, safe in any process.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from fl.json_values import JsonObject
from fl.report import style
from fl.report.read import RoundRow
from fl.report.words import duration, percent, size

MANY = 16  # a plot with a bar for each of more things than this takes the page's whole width
STEPS = {"epoch": "fusion epoch", "round": "round"}
LEAST_SPAN = 0.05  # of the accuracy axis
MOST_COLUMNS = 500  # clients that have a column each; of more, neighbours share a pixel
THINNEST = 0.5  # points that a bar is wide: thinner ones would fade
NUMBERED = 12  # classes up to which each cell of the confusion has its number
LARGE = 9.2  # inches across, of the confusion of many classes
ATTACKS = {"loss": style.TIME, "ratio": style.WORST}
"""The attacks on privacy, each with its colour."""
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


def partition_map(
    counts: NDArray[np.int64], roles: Sequence[str], class_names: Sequence[str]
) -> Figure:
    """Clients across, classes up. A cell has the colour of the client's role; its shade is the
    number of samples, by the square root so that small numbers can be seen.

    Args:
        counts: (clients, classes).
        roles: of the clients.
        class_names: of the classes.
    """
    clients, classes = counts.shape
    figure, axes = style.new_axes(style.WIDE, min(max(3.0, 1.2 + 0.3 * classes), 12.0))
    colours = np.array([to_rgb(style.role_colour(role)) for role in roles])[:, None]
    shades = 1 - np.sqrt(counts / max(counts.max(), 1))[..., None] * (1 - colours)
    smooth = "none" if clients <= MOST_COLUMNS else "auto"
    image = shades.transpose(1, 0, 2)
    axes.imshow(image, aspect="auto", origin="lower", interpolation=smooth)
    axes.grid(visible=False)
    axes.set(xlabel="client", ylabel="class")
    style.name_rows(figure, axes, list(class_names))
    style.name_columns(figure, axes, [str(index) for index in range(clients)])
    _role_legend(axes, roles)
    return figure


def client_bytes(bytes_up: Mapping[int, int], roles: Sequence[str]) -> Figure:
    """What each client sent; `roles` in the order of the mapping."""
    sent = np.array(list(bytes_up.values()), dtype=float)
    figure, axes = style.new_axes(width_of(len(sent)), 3.4)
    look: Any = {"colors": [style.role_colour(role) for role in roles]}
    look["rasterized"] = len(sent) > style.MOST_SHAPES
    places = np.arange(len(sent))
    axes.set(xlabel="client", ylabel="sent to the server", xlim=(-0.7, len(sent) - 0.3))
    if is_spread(bytes_up):
        # No bars: on a logarithmic axis, which has no zero, a bar's length means nothing.
        logarithmic(axes, ones_only=False)
        colours = look.pop("colors")
        axes.scatter(places, sent, c=colours, s=60, linewidths=0, **look)
        axes.margins(y=0.15)
    else:
        room = 0.85 * 72 * figure.get_figwidth() / len(sent)  # points
        axes.vlines(places, 0, sent, linewidth=max(0.72 * room, THINNEST), **look)
        axes.set_ylim(0, 1.05 * sent.max())
    axes.yaxis.set_major_formatter(lambda value, _: size(value).replace(".0 ", " "))
    style.name_columns(figure, axes, [str(client) for client in bytes_up])
    _role_legend(axes, roles)
    return figure


def logarithmic(axes: Axes, *, ones_only: bool) -> None:
    """A logarithmic y-axis. It names powers of ten, and unless ``ones_only`` 2 and 5 times them."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if ones_only else (1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())


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


def confusion_matrix(counts: NDArray[np.int64], class_names: Sequence[str]) -> Figure:
    """Rows are true classes, columns predicted ones. Each cell's share of its true class is a
    shade, by the square root so that small shares can be seen: of one colour if right, else of
    another."""
    classes = len(counts)
    inches = LARGE if classes > MANY else style.HALF
    figure, axes = style.new_axes(inches, 0.96 * inches)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    right = np.eye(classes, dtype=bool)[..., None]
    colours = np.where(right, to_rgb(style.GLOBAL_MODEL), to_rgb(style.WORST))
    axes.imshow(1 - np.sqrt(shares)[..., None] * (1 - colours), interpolation="none")
    axes.grid(visible=False)
    axes.spines[:].set(visible=True, color=style.RULE)
    axes.set(xlabel="predicted class", ylabel="true class")
    style.name_columns(figure, axes, list(class_names))
    style.name_rows(figure, axes, list(class_names))
    for true, predicted in np.argwhere(counts).tolist() if classes <= NUMBERED else []:
        number = axes.text(predicted, true, str(counts[true, predicted]))
        colour = "white" if shares[true, predicted] > 0.4 else style.INK
        number.set(fontsize=style.TICK - 1, color=colour, ha="center", va="center_baseline")
    kinds = {"right": style.GLOBAL_MODEL, "taken for another": style.WORST}
    style.legend_above(axes, 2, [Patch(color=c, label=name) for name, c in kinds.items()])
    return figure


def roc_curves(privacy: JsonObject) -> Figure:
    """What attacks can tell of a run's training samples: true against false positive rates, both
    logarithmic. A thin line per upload, a thick one for the global model, dashes for chance."""
    figure, axes = style.new_axes(style.HALF, 4.0, "both")
    rates = privacy["false_positives"]
    for name, curve, is_global in attacks(privacy):
        label = f"{name}, {'global model' if is_global else 'an upload'}"
        (line,) = axes.plot(rates, curve["curve"], color=ATTACKS[name])
        line.set_linewidth(2.4 if is_global else 0.8)
        if label not in axes.get_legend_handles_labels()[1]:
            line.set_label(label)
    axes.plot(rates, rates, color=style.MUTED, linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1.2))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    style.legend_above(axes, 2)
    return figure


def attacks(privacy: JsonObject) -> list[tuple[str, JsonObject, bool]]:
    """Each attack's name and curve, and whether it is on the global model."""
    rows = [row for row in [*privacy["uploads"], privacy["global"]] if row]
    return [(n, curve, "client" not in row) for row in rows for n, curve in row["attacks"].items()]


def _role_legend(axes: Axes, roles: Sequence[str]) -> None:
    handles = [Patch(color=style.role_colour(role), label=role) for role in sorted(set(roles))]
    style.legend_above(axes, len(handles), handles, handlelength=1.0)
