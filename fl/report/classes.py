"""Figures by class: accuracies, confusion, and images, a row for each class."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from fl.report import style
from fl.report.course import Drawn
from fl.report.read import REAL, Images, RunRecord

NUMBERED = 12  # classes up to which each cell of the confusion has its number
LARGE = 9.2  # inches across, of the confusion of many classes
MOST_MISTAKES = 3  # in the caption of the confusion


def by_class(run: RunRecord) -> Drawn:
    """A bar per class; none for a class without a test sample."""
    values = run.result.get("per_class_accuracy") or []
    return _bars(run, dict(zip(run.class_names(len(values)), values, strict=True)), "class")


def by_domain(run: RunRecord) -> Drawn:
    """A bar per domain, of data sets that have some."""
    return _bars(run, run.result.get("per_domain_accuracy") or {}, "domain")


def _bars(run: RunRecord, values: Mapping[str, float | None], things: str) -> Drawn:
    """A bar per thing and a line at the overall accuracy."""
    if not values:
        return None
    heights = np.array([*values.values()], dtype=float)
    figure, axes = style.new_axes(style.width_of(len(heights)), 3.4)
    axes.bar(range(len(heights)), heights, color=style.GLOBAL_MODEL, width=0.72)
    axes.axhline(run.result["accuracy"], color=style.INK, linestyle="--", linewidth=1.2)
    style.accuracy_axis(axes)
    axes.set(xlabel=things, ylim=(0, 1), xlim=(-0.7, len(heights) - 0.3))
    style.name_columns(figure, axes, [*values])
    over = " over all clients" if run.scores else ""
    return figure, f"{run.metric_name} on each {things}{over}; the dashed line is that of all."


def confusion(run: RunRecord) -> Drawn:
    """Rows are true classes, columns predicted ones. Each cell's share of its true class is a
    shade, by the square root so that small shares can be seen: of one colour if right, else of
    another."""
    if not run.result.get("confusion"):
        return None
    counts = np.array(run.result["confusion"], dtype=np.int64)
    classes, names = len(counts), run.class_names(len(counts))
    inches = LARGE if classes > style.MANY else style.HALF
    figure, axes = style.new_axes(inches, 0.96 * inches)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    right = np.eye(classes, dtype=bool)[..., None]
    colours = np.where(right, to_rgb(style.GLOBAL_MODEL), to_rgb(style.WORST))
    axes.imshow(1 - np.sqrt(shares)[..., None] * (1 - colours), interpolation="none")
    axes.grid(visible=False)
    axes.set(xlabel="predicted class", ylabel="true class")
    style.name_columns(figure, axes, names)
    style.name_rows(figure, axes, names)
    for true, predicted in np.argwhere(counts).tolist() if classes <= NUMBERED else []:
        number = axes.text(predicted, true, str(counts[true, predicted]), ha="center", va="center")
        colour = "white" if shares[true, predicted] > 0.4 else style.INK
        number.set(fontsize=style.TICK - 1, color=colour)
    kinds = {"right": style.GLOBAL_MODEL, "taken for another": style.WORST}
    style.legend_above(axes, [Patch(color=c, label=name) for name, c in kinds.items()])
    caption = f"{run.tested_on.capitalize()} by true and predicted class: the darker, the larger "
    caption += "the share of the true class (by the square root)"
    most = most_confused(counts, names)
    return figure, f"{caption}. Most often {most}." if most else f"{caption}."


def most_confused(counts: NDArray[np.int64], names: Sequence[str]) -> str:
    """The most frequent mistakes in words; empty if there is none.

    >>> most_confused(np.array([[9, 1], [3, 5]]), ["cat", "dog"])
    'dog is taken for cat (3 of 8), cat for dog (1 of 10)'
    """
    wrong = np.where(np.eye(len(counts), dtype=bool), 0, counts)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_MISTAKES].tolist()
    said = [
        f"{names[true]} for {names[taken]} ({wrong[true, taken]:,} of {counts[true].sum():,})"
        for true, taken in (divmod(place, len(counts)) for place in order)
        if wrong[true, taken]
    ]
    return ", ".join(said).replace(" for ", " is taken for ", 1)


# Images: a row for each class, groups of examples side by side.

GROUPS = {REAL: "real images", "before": "raw synthetic", "after": "kept by filter"}
"""The groups of example images in their order, each with its heading."""
WHITE = 255
MISSING = 240  # grey of a tile without an image
LARGEST_TILE = 0.65  # inches across
TALLEST = 14.0  # inches; tiles of many classes are smaller


def samples(run: RunRecord) -> Drawn:
    """Synthetic images of each class before and after the filter, and real ones if asked for."""
    if run.samples is None:
        return None
    groups = {GROUPS[name]: run.samples[name] for name in GROUPS if name in run.samples}
    caption = f"Each row is a class: {', '.join(groups)}"
    if counted := run.result.get("synthetic"):
        caption += f" ({counted['kept']:,} of {counted['generated']:,} in the whole run)"
    return image_grid(groups, run.class_names(len(run.samples["before"]))), f"{caption}."


def sent(run: RunRecord) -> Drawn:
    """Images that clients sent, by class."""
    if run.sent is None:
        return None
    images, labels = run.sent["images"], run.sent["labels"]
    classes = np.unique(labels).tolist()
    shown = np.zeros((len(classes), np.bincount(labels).max(), *images.shape[1:]), np.uint8)
    for row, label in enumerate(classes):
        own = images[labels == label]
        shown[row, : len(own)] = own
    names = (
        run.partition.class_names if run.partition else [str(k) for k in range(max(classes) + 1)]
    )
    figure = image_grid({"sent": shown}, [names[label] for label in classes])
    return figure, "Each row is a class: the first image of it that each of some clients sent."


def image_grid(groups: Mapping[str, Images], names: Sequence[str]) -> Figure:
    """The examples of every class, each group under its name.

    Args:
        groups: by name, (classes, examples, channels, height, width); zeros for a missing image.
        names: of the classes.
    """
    picture = mosaic([*groups.values()])
    tall, wide = picture.shape[:2]
    tile = next(iter(groups.values())).shape[-1]
    margin = 0.3 + style.LETTER * max(map(len, names))
    pixel = min((style.WIDE - margin) / wide, LARGEST_TILE / tile, TALLEST / tall)  # inches
    size = margin + wide * pixel, 0.4 + tall * pixel
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    axes = figure.subplots()
    axes.imshow(picture, interpolation="nearest")
    row, column = tall / len(names), wide / len(groups)
    rows, columns = (np.arange(len(n)) + 0.5 for n in (names, groups))
    axes.set_yticks(rows * row, labels=names, parse_math=False, fontsize=style.TICK)
    axes.set_xticks(columns * column, labels=[*groups], fontsize=style.LABEL)
    axes.tick_params(length=0, labelcolor=style.INK, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    return figure


def mosaic(groups: Sequence[Images]) -> Images:
    """One RGB picture: a row per class, the groups side by side with a white strip between."""
    strip = groups[0].shape[-1] // 2
    bands = [np.pad(_band(g), [(0, 0), (0, strip), (0, 0)], constant_values=WHITE) for g in groups]
    return np.concatenate(bands, axis=1)[:, :-strip]


def _band(images: Images) -> Images:
    """One group as a picture (height, width, 3)."""
    classes, examples, _, height, width = images.shape
    pixels = np.moveaxis(images, 2, -1)
    pixels = np.broadcast_to(pixels, (classes, examples, height, width, 3)).copy()
    pixels[~images.any(axis=(2, 3, 4))] = MISSING
    gap = max(1, width // 14)
    spaced = np.pad(pixels, [(0, 0), (0, 0), (0, gap), (0, gap), (0, 0)], constant_values=WHITE)
    rows = spaced.transpose(0, 2, 1, 3, 4)
    return rows.reshape(classes * (height + gap), examples * (width + gap), 3)
