"""The picture of what left clients: images that they sent, each above the nearest real one."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fl.json_values import JsonObject
from fl.report import style
from fl.report.mosaic import mosaic
from fl.report.read import SentImages

MARGIN = 1.05  # inches for the names of rows
PAD = 0.1  # inches around the whole
LARGEST_TILE = 0.9  # inches across
BELOW = 0.5  # inches for client and distance
LINE = 0.22  # inches that a line of text takes


def sent_grid(sent: SentImages, class_names: Sequence[str]) -> Figure:
    """A column for each class; in it, for each of some clients, an image that it sent, the nearest
    real one of the class that the client has, and how far the one is from the other."""
    classes = np.unique(sent.labels).tolist()
    columns = [np.flatnonzero(sent.labels == label).tolist() for label in classes]
    names = [class_names[label] for label in classes]
    across = min(LARGEST_TILE, (style.WIDE - MARGIN - PAD) / len(classes))
    up = across * sent.sent.shape[-2] / sent.sent.shape[-1]
    longest = max(map(len, names)) * style.LETTER
    heading = LINE + (longest if longest > across else 0)
    rows = max(map(len, columns))
    size = MARGIN + across * len(classes) + PAD, PAD + heading + rows * (2 * up + BELOW)
    figure = Figure(figsize=size, facecolor="white")
    for row in range(rows):
        places = [own[row] if row < len(own) else None for own in columns]
        top = size[1] - PAD - heading - row * (2 * up + BELOW)
        above, below = (_box(figure, top - n * up, across * len(classes), up) for n in (1, 2))
        _draw(above, _strip(sent.sent, places), "sent")
        _draw(below, _strip(sent.real, places), "nearest real")
        if row == 0:
            _name_above(above, names, upright=longest > across)
        _tell_below(below, sent, places)
    return figure


def _box(figure: Figure, bottom: float, width: float, height: float) -> Axes:
    """Axes right of the margin, placed in inches."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((MARGIN / wide, bottom / high, width / wide, height / high))


def _strip(images: NDArray[np.uint8], places: Sequence[int | None]) -> NDArray[np.uint8]:
    """The images at these places side by side, a pale tile where there is none."""
    row = np.zeros((1, len(places), *images.shape[1:]), np.uint8)
    for column, place in enumerate(places):
        if place is not None:
            row[0, column] = images[place]
    return mosaic([row])


def _draw(axes: Axes, picture: NDArray[np.uint8], name: str) -> None:
    axes.imshow(picture, aspect="auto", interpolation="nearest")
    axes.set_yticks([len(picture) / 2], [name], fontsize=style.LABEL, color=style.INK)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _centres(axes: Axes, count: int) -> list[float]:
    pitch = axes.get_xlim()[1] / count
    return [(column + 0.47) * pitch for column in range(count)]


def _name_above(axes: Axes, names: Sequence[str], *, upright: bool) -> None:
    axes.set_xticks(_centres(axes, len(names)))
    turned = 90 if upright else 0
    # Names are no formulas, even with a dollar sign in them.
    axes.set_xticklabels(names, parse_math=False, rotation=turned, fontsize=style.TICK)
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False, labelcolor=style.INK)


def _tell_below(axes: Axes, sent: SentImages, places: Sequence[int | None]) -> None:
    told = [
        "" if place is None else f"client {sent.clients[place]}\n{distance(sent.distances[place])}"
        for place in places
    ]
    axes.set_xticks(_centres(axes, len(places)), told, fontsize=style.TICK, color=style.INK)
    axes.annotate(
        "by\ndistance",
        xy=(0, 0),
        xycoords="axes fraction",
        xytext=(-5, -3.5),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=style.TICK,
        color=style.INK,
    )


def distance(value: float) -> str:
    """A distance with two digits that count.

    >>> [distance(value) for value in (0.0, 0.000071, 0.01234)]
    ['0', '0.000071', '0.012']
    """
    return np.format_float_positional(value, precision=2, fractional=False, trim="-")


def tell_sent(sent: SentImages, figures: JsonObject | None) -> str:
    """What the picture shows, in sentences.

    ``figures``: ``images``, ``steps`` and ``nearest_real`` of the whole run, where it is finished.
    """
    told = ""
    if figures:
        images, steps = figures["images"], figures["steps"]
        how = f"after {steps:,.0f} step{'' if steps == 1 else 's'} of distillation"
        told = (
            f"{images:,} images, {how if steps else 'without distillation'}; their mean distance "
            f"to the nearest real one of their class at their client is "
            f"{distance(figures['nearest_real'])} of the pixels' range (0: the very image). "
        )
    same = int((sent.distances == 0).sum())
    return told + (
        "Shown are first images of a class from a client, each above the nearest real one, with "
        f"their distance; {same} of these {len(sent.labels)} are the very image, bit for bit."
    )
