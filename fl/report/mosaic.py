"""The picture of a run's samples: for each class, real images beside synthetic ones.

All images of a column of classes are assembled into one array and drawn once, since hundreds of
axes, one per image, would take longer than some runs.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fl.report import style
from fl.report.read import ExampleImages

GROUPS = ("real", "raw synthetic", "kept by filter")
WHITE = 255
MISSING = 240  # the tile of an image that does not exist
EXAMPLES = 8  # of each group in a row of the page
LARGEST_TILE = 0.65  # inches across
HEADING = 0.32  # inches above the images


def mosaic(groups: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """One RGB picture: a row per class, the groups side by side with a white strip between.

    Each group has the shape (classes, examples, channels, height, width).
    """
    width = groups[0].shape[-1]
    bands = [_band(images) for images in groups]
    strip = np.full((len(bands[0]), width // 2, 3), WHITE, np.uint8)
    parts = [part for band in bands for part in (strip, band)][1:]
    return np.concatenate(parts, axis=1)


def tile_gap(width: int) -> int:
    """White pixels between neighbouring images of this width."""
    return max(1, width // 14)


def _band(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    classes, examples, _, height, width = images.shape
    pixels = np.broadcast_to(
        np.moveaxis(images, 2, -1), (classes, examples, height, width, 3)
    ).copy()
    pixels[~images.any(axis=(2, 3, 4))] = MISSING
    gap = tile_gap(width)
    spaced = np.pad(pixels, [(0, 0), (0, 0), (0, gap), (0, gap), (0, 0)], constant_values=WHITE)
    rows = spaced.transpose(0, 2, 1, 3, 4)
    return rows.reshape(classes * (height + gap), examples * (width + gap), 3)


def sample_grid(samples: ExampleImages, class_names: Sequence[str]) -> Figure:
    """The samples of every class; many classes take several columns, with fewer examples."""
    classes, width = len(samples.real), samples.real.shape[-1]
    columns = 1 if classes <= 16 else 2
    rows = math.ceil(classes / columns)
    shown = EXAMPLES // columns
    groups = [images[:, :shown] for images in (samples.real, samples.before, samples.after)]
    parts = [slice(start, start + rows) for start in range(0, classes, rows)]
    pictures = [mosaic([group[part] for group in groups]) for part in parts]

    margin = 0.25 + style.LETTER * max(map(len, class_names))
    available = style.WIDE / columns - margin
    inches_per_pixel = min(available / pictures[0].shape[1], LARGEST_TILE / width)
    picture_height, picture_width = (n * inches_per_pixel for n in pictures[0].shape[:2])
    figure_width = len(parts) * (margin + picture_width)
    figure_height = HEADING + picture_height
    figure = Figure(figsize=(figure_width, figure_height), facecolor="white")
    for index, (part, picture) in enumerate(zip(parts, pictures, strict=True)):
        own_height = picture_height * len(picture) / len(pictures[0])
        left = index * (margin + picture_width) + margin
        box = (
            left / figure_width,
            (picture_height - own_height) / figure_height,
            picture_width / figure_width,
            own_height / figure_height,
        )
        _draw(figure, box, picture, list(class_names[part]))
    return figure


def _draw(
    figure: Figure,
    box: tuple[float, float, float, float],
    picture: NDArray[np.uint8],
    names: list[str],
) -> None:
    axes = figure.add_axes(box)
    axes.imshow(picture, aspect="auto", interpolation="nearest")
    row = len(picture) / len(names)
    axes.set_yticks([(index + 0.46) * row for index in range(len(names))])
    axes.set_yticklabels(names, parse_math=False, fontsize=style.TICK, color=style.INK)
    third = picture.shape[1] / len(GROUPS)
    axes.set_xticks([(index + 0.5) * third for index in range(len(GROUPS))])
    axes.set_xticklabels(GROUPS, fontsize=style.LABEL, color=style.INK)
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
