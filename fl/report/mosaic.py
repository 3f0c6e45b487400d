"""The pictures of images: a row per class, groups of examples side by side."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fl.report import style

WHITE = 255
MISSING = 240  # the tile of an image that does not exist
EXAMPLES = 8  # of each group in a row of the page
LARGEST_TILE = 0.65  # inches across
MOST_ROWS = 16  # more classes are shown in two columns, with half as many examples
Images = NDArray[np.uint8]


def sample_grid(groups: Mapping[str, Images], class_names: Sequence[str]) -> Figure:
    """The examples of every class, each group under its name.

    Args:
        groups: by name, (classes, examples, channels, height, width); zeros for a missing image.
        class_names: of the rows.
    """
    columns = 1 if len(class_names) <= MOST_ROWS else 2
    rows = math.ceil(len(class_names) / columns)
    shown = EXAMPLES // columns
    parts = [slice(start, start + rows) for start in range(0, len(class_names), rows)]
    pictures = [mosaic([images[part, :shown] for images in groups.values()]) for part in parts]
    tall, wide = pictures[0].shape[:2]
    tile = next(iter(groups.values())).shape[-1]
    margin = 0.3 + style.LETTER * max(map(len, class_names))
    pixel = min((style.WIDE / columns - margin) / wide, LARGEST_TILE / tile)  # inches
    size = len(parts) * (margin + wide * pixel), 0.4 + tall * pixel
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    panels = figure.subplots(1, len(parts), squeeze=False)[0]
    for axes, part, picture in zip(panels, parts, pictures, strict=True):
        _draw(axes, picture, class_names[part], list(groups))
    return figure


def mosaic(groups: Sequence[Images]) -> Images:
    """One RGB picture: a row per class, the groups side by side with a white strip between."""
    strip = groups[0].shape[-1] // 2
    bands = [np.pad(_band(g), [(0, 0), (0, strip), (0, 0)], constant_values=WHITE) for g in groups]
    return np.concatenate(bands, axis=1)[:, :-strip]


def tile_gap(width: int) -> int:
    """White pixels between neighbouring images of this width."""
    return max(1, width // 14)


def _band(images: Images) -> Images:
    classes, examples, _, height, width = images.shape
    pixels = np.moveaxis(images, 2, -1)
    pixels = np.broadcast_to(pixels, (classes, examples, height, width, 3)).copy()
    pixels[~images.any(axis=(2, 3, 4))] = MISSING
    gap = tile_gap(width)
    spaced = np.pad(pixels, [(0, 0), (0, 0), (0, gap), (0, gap), (0, 0)], constant_values=WHITE)
    rows = spaced.transpose(0, 2, 1, 3, 4)
    return rows.reshape(classes * (height + gap), examples * (width + gap), 3)


def _draw(axes: Axes, picture: Images, names: Sequence[str], groups: Sequence[str]) -> None:
    axes.imshow(picture, interpolation="nearest")
    axes.set_anchor("N")
    row, column = len(picture) / len(names), picture.shape[1] / len(groups)
    axes.set_yticks([(index + 0.46) * row for index in range(len(names))])
    axes.set_yticklabels(names, parse_math=False, fontsize=style.TICK, color=style.INK)
    axes.set_xticks([(index + 0.5) * column for index in range(len(groups))])
    axes.set_xticklabels(groups, fontsize=style.LABEL, color=style.INK)
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
