"""The style of all figures. Each colour means one thing throughout the report.

The colours are Okabe and Ito's, which people with any colour vision can distinguish.
"""

import io
import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import matplotlib.style
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

INK = "#1f2933"
MUTED = "#5f6b78"
RULE = "#e3e7eb"
GLOBAL_MODEL = "#009e73"
BEST = "#cc79a7"
WORST = "#d55e00"
TIME = "#7b8794"
ROLES = {"classifier": "#0072b2", "generator": "#e69f00"}
OTHER_ROLE = "#56b4e9"

HALF, WIDE = 5.0, 10.4  # widths in inches: half and whole of the page
PIXELS_PER_INCH = 200  # twice what the page shows, for sharp screens and for paper
LABEL, TICK = 10.5, 9.5  # font sizes in points
LETTER = 0.09  # approximate width of a letter of a tick's label, in inches
NAMES_PER_INCH = 5  # named ticks along an axis
MOST_SHAPES = 2000  # a vector figure holds at most so many; more are drawn as pixels
MANY = 16  # a figure of more things than this takes the whole width of the page
LEAST_SPAN = 0.05  # of an axis of accuracies


def role_colour(role: str) -> str:
    """The colour of a client's role."""
    return ROLES.get(role, OTHER_ROLE)


def role_patches(roles: Iterable[str]) -> list[Artist]:
    """A legend's patch for each of the roles."""
    return [Patch(color=role_colour(role), label=role) for role in sorted(set(roles))]


def width_of(things: int) -> float:
    """The width in inches of a figure that shows this many things side by side."""
    return WIDE if things > MANY else HALF


def new_axes(
    width: float, height: float, grid: Literal["both", "x", "y"] = "y"
) -> tuple[Figure, Axes]:
    """A white figure of this size in inches, with one plain pair of axes."""
    figure, (axes,) = new_panels(width, height, 1, grid)
    return figure, axes


def new_panels(
    width: float, height: float, count: int, grid: Literal["both", "x", "y"] = "y"
) -> tuple[Figure, list[Axes]]:
    """The same with several pairs of axes side by side, which share the y-axis."""
    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0].tolist()
    for axes in panels:
        quiet(axes, grid)
    return figure, panels


def quiet(axes: Axes, grid: Literal["both", "x", "y"] = "y") -> None:
    """Gives a pair of axes the report's look."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=TICK, colors=MUTED, labelcolor=INK)
    axes.xaxis.label.set(size=LABEL, color=INK)
    axes.yaxis.label.set(size=LABEL, color=INK)
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=RULE)


def accuracy_axis(axes: Axes, metric: str = "accuracy") -> None:
    """A y-axis of accuracies in percent, long enough that noise does not look like a trend; of
    another metric it may end below 0."""
    axes.set_ylabel(metric)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    low, high = axes.get_ylim()
    spare = max(0.0, LEAST_SPAN - (high - low)) / 2
    least = -0.004 if metric == "accuracy" else low - spare
    axes.set_ylim(max(low - spare, least), min(high + spare, 1.004))


def count_axis(axes: Axes, of: str) -> None:
    """An x-axis that counts rounds, epochs or steps."""
    axes.set_xlabel(of)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def legend(axes: Axes) -> None:
    """A legend within the axes, where it hides the least."""
    axes.legend(frameon=False, fontsize=TICK, labelcolor=INK)


def legend_above(axes: Axes, handles: Sequence[Artist] = (), columns: int = 4) -> None:
    """A legend above the axes, where it hides no data: of the handles, or else of all artists."""
    axes.legend(
        handles=handles or None,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        frameon=False,
        fontsize=TICK,
        labelcolor=INK,
        borderaxespad=0.2,
        handlelength=1.4,
        columnspacing=1.2,
    )


def name_columns(figure: Figure, axes: Axes, names: Sequence[str]) -> None:
    """Puts names at 0, 1, ... across the figure; slanted where they would overlap."""
    width = figure.get_figwidth()
    shown = _name(axes.xaxis, names, width)
    if max(map(len, shown)) * LETTER > width / len(shown):
        for label in axes.get_xticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")


def name_rows(figure: Figure, axes: Axes, names: Sequence[str]) -> None:
    """Puts names at 0, 1, ... up the figure."""
    _name(axes.yaxis, names, figure.get_figheight())


def _name(axis: Axis, names: Sequence[str], inches: float) -> Sequence[str]:
    """Shows as many names as fit, at even steps; returns those."""
    step = math.ceil(len(names) / (NAMES_PER_INCH * inches))
    shown = names[::step]
    # A name with a dollar sign is not a formula.
    axis.set_ticks(range(0, len(names), step), labels=shown, parse_math=False)
    axis.set_tick_params(length=0)
    return shown


def own_defaults() -> AbstractContextManager[None]:
    """Inside, matplotlib has its own defaults, whatever the user has set for other figures."""
    return matplotlib.style.context("default")


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    return _saved(figure, "png")


def svg(figure: Figure) -> bytes:
    """The figure as an SVG file; equal figures give equal bytes."""
    with rc_context({"svg.hashsalt": "onefold"}):
        return _saved(figure, "svg", metadata={"Date": None})


def _saved(figure: Figure, ending: str, **how: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=ending, dpi=PIXELS_PER_INCH, **how)
    return buffer.getvalue()
