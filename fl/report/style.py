"""The style of all plots. Each colour means one thing throughout the report.

The colours are Okabe and Ito's, which people with any colour vision can distinguish.
"""

import io
import math
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from matplotlib import rc_context, rcParamsDefault
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

INK = "#1f2933"
MUTED = "#5f6b78"
RULE = "#e3e7eb"
GLOBAL_MODEL = "#009e73"
BEST = "#cc79a7"
WORST = "#d55e00"
TIME = "#7b8794"
ROLES = {"classifier": "#0072b2", "generator": "#e69f00"}
OTHER_ROLE = "#56b4e9"
PARTS = {"local": "#0072b2", "server": GLOBAL_MODEL, "overhead": "#d55e00"}  # of a round

HALF, WIDE = 5.0, 10.4  # widths in inches: half and whole of the page
PIXELS_PER_INCH = 200  # twice what the page shows, for sharp screens and for paper
LABEL, TICK = 10.5, 9.5  # font sizes in points
LETTER = 0.09  # inches that a letter of a tick's label takes, roughly
NAMES_PER_INCH = 5  # ticks with names, along an axis
MOST_SHAPES = 2000  # of one artist; of more a vector picture contains pixels


def role_colour(role: str) -> str:
    """The colour of a client's role."""
    return ROLES.get(role, OTHER_ROLE)


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
    """Gives a pair of axes the look that all of the report's have."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=TICK, colors=MUTED, labelcolor=INK)
    axes.xaxis.label.set(size=LABEL, color=INK)
    axes.yaxis.label.set(size=LABEL, color=INK)
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=RULE)


def legend_above(
    axes: Axes, columns: int, handles: Sequence[Artist] | None = None, /, **look: float
) -> None:
    """A legend above the axes, as there is no place within them that no data may take.

    ``look``: further settings of the legend.
    """
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        frameon=False,
        fontsize=TICK,
        labelcolor=INK,
        borderaxespad=0.2,
        **look,
    )


def name_columns(figure: Figure, axes: Axes, names: list[str]) -> None:
    """Puts names at 0, 1, ... across the figure; slanted where they would overlap."""
    width = figure.get_figwidth()
    shown = _name(axes.xaxis, names, width)
    if max(map(len, shown)) * LETTER > width / len(shown):
        for label in axes.get_xticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")


def name_rows(figure: Figure, axes: Axes, names: list[str]) -> None:
    """Puts names at 0, 1, ... up the figure."""
    _name(axes.yaxis, names, figure.get_figheight())


def _name(axis: Axis, names: list[str], inches: float) -> list[str]:
    """Shows as many names as fit, at even steps; returns those."""
    step = math.ceil(len(names) / (NAMES_PER_INCH * inches))
    shown = names[::step]
    # Names are no formulas, even with a dollar sign in them.
    axis.set_ticks(range(0, len(names), step), labels=shown, parse_math=False)
    axis.set_tick_params(length=0)
    return shown


@contextmanager
def our_own() -> Iterator[None]:
    """Inside, Matplotlib has its own defaults, whatever the user has set for other figures."""
    defaults: Any = {name: own for name, own in rcParamsDefault.items() if name != "backend"}
    with rc_context(defaults):
        yield


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    return _saved(figure, "png")


def svg(figure: Figure) -> bytes:
    """The figure as an SVG file, its letters as paths: it looks the same wherever it is opened."""
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "onefold"}):
        return _saved(figure, "svg", metadata={"Date": None})


def _saved(figure: Figure, ending: str, **how: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=ending, dpi=PIXELS_PER_INCH, **how)
    return buffer.getvalue()


def base64(content: bytes) -> str:
    """The content as a page's data URL contains it."""
    return b64encode(content).decode()
