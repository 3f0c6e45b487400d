"""The style of all plots. Each colour means one thing throughout the report.

The colours are Okabe and Ito's, which people with any colour vision can distinguish.
"""

import io
import math
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context, rcParamsDefault
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from PIL.Image import Image, fromarray

INK = "#1f2933"
MUTED = "#5f6b78"
RULE = "#e3e7eb"
GLOBAL_MODEL = "#009e73"
BEST = "#cc79a7"
WORST = "#d55e00"
TIME = "#7b8794"
ROLES = {"classifier": "#0072b2", "generator": "#e69f00"}
OTHER_ROLE = "#56b4e9"
MANY_CLIENTS = "#0f4c5c"  # of several roles at once
PARTS = {"local": "#0072b2", "server": GLOBAL_MODEL, "overhead": "#d55e00"}  # of a round

HALF, WIDE = 5.0, 10.4  # widths in inches: half and whole of the page
PIXELS_PER_INCH = 200  # twice what the page shows, for sharp screens and for paper
LABEL, TICK = 10.5, 9.5  # font sizes in points
LETTER = 0.09  # inches that a letter of a tick's label takes, roughly
NAMES_PER_INCH = 5  # ticks with names, along an axis
MOST_SHAPES = 2000  # of one kind in a vector picture, which a browser has to draw


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


def add_bars(axes: Axes, bars: np.ndarray, **look: Any) -> None:
    """Draws rectangles as one artist: thousands by themselves would take minutes.

    Args:
        axes: where; its limits are left as they are.
        bars: (n, 4), of each left, bottom, width and height.
        **look: of matplotlib's collections, one value for all or one for each.
    """
    left, bottom, width, height = bars.T
    right, top = left + width, bottom + height
    corners = np.array([[left, bottom], [right, bottom], [right, top], [left, top]])
    if len(bars) > MOST_SHAPES:  # narrower than a pixel, they would fade
        look |= {"antialiaseds": False}
    rectangles = PolyCollection(list(corners.transpose(2, 0, 1)), **look)
    pixels_if_many(rectangles, len(bars))
    axes.add_collection(rectangles)


def pixels_if_many(artist: Artist, shapes: int) -> None:
    """Makes what draws too many shapes pixels in a vector picture too."""
    artist.set_rasterized(shapes > MOST_SHAPES)


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


KINDS = {"svg": "image/svg+xml", "webp": "image/webp", "png": "image/png"}
"""The media type of a picture's file by its ending."""
QUALITY = 90  # of WebP, where it is not lossless
NO_CONTENT = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>|(?<=>)\s+(?=<)", re.DOTALL)
"""What an SVG file shows nothing of: comments, metadata, space between its elements."""

PATH, TOO_FINE = re.compile(r' d="[^"]*"'), re.compile(r"(?<=\.\d\d)\d+")
"""An SVG path's points, and their digits beyond hundredths, which nobody sees."""


def files(figure: Figure, *, of_images: bool) -> dict[str, bytes]:
    """The figure's files by their ending: PNG, and WebP if it shows images, else SVG.

    Matplotlib's own ``savefig`` would place and draw all of it twice for each file.
    """
    image = _rendered(figure)
    small = {"webp": _webp(image)} if of_images else {"svg": svg(figure)}
    return {**small, "png": _png(image)}


@contextmanager
def our_own() -> Iterator[None]:
    """Inside, Matplotlib has its own defaults, whatever the user has set for other figures."""
    defaults: Any = {name: own for name, own in rcParamsDefault.items() if name != "backend"}
    with rc_context(defaults):
        yield


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    return _png(_rendered(figure))


def svg(figure: Figure) -> bytes:
    """The figure as an SVG file, its letters as paths: it looks the same wherever it is opened."""
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "onefold"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    content = NO_CONTENT.sub("", buffer.getvalue())
    return PATH.sub(lambda path: TOO_FINE.sub("", path[0]), content).encode()


def _rendered(figure: Figure) -> Image:
    """The figure in pixels. What it has is placed for this, and stays there for its SVG."""
    figure.set_dpi(PIXELS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_layout_engine("none")
    return fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def _png(image: Image) -> bytes:
    return _saved(image, "png", dpi=(PIXELS_PER_INCH, PIXELS_PER_INCH))


def _webp(image: Image) -> bytes:
    """Lossless, or with slight losses where that is smaller.

    Methods that try for longer make files as large, within some percent.
    """
    lossless = _saved(image, "webp", lossless=True, quality=50, method=1)
    return min(lossless, _saved(image, "webp", quality=QUALITY, method=2), key=len)


def _saved(image: Image, ending: str, **how: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=ending, **how)
    return buffer.getvalue()


def base64(content: bytes) -> str:
    """The content as a page's data URL contains it."""
    return b64encode(content).decode()
