"""The picture of a confusion matrix: rows are the true classes, columns the predicted ones."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from fl.report import style
from fl.report.plots import MANY

NUMBERED = 12  # classes up to which each cell has its number
LARGE = 9.2  # inches across, with many classes
MOST_TOLD = 3
Shares = NDArray[np.float64]


def confusion_matrix(counts: NDArray[np.int64], class_names: Sequence[str]) -> Figure:
    """Each cell's share of its true class as a shade: of one colour if right, else of another."""
    classes = len(counts)
    inches = LARGE if classes > MANY else style.HALF
    figure, axes = style.new_axes(inches, 0.96 * inches)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(_shades(shares, np.eye(classes, dtype=bool)), interpolation="none")
    axes.grid(visible=False)
    axes.spines[:].set(visible=True, color=style.RULE)
    axes.set(xlabel="predicted class", ylabel="true class")
    style.name_columns(figure, axes, list(class_names))
    style.name_rows(figure, axes, list(class_names))
    if classes <= NUMBERED:
        _number(axes, counts, shares)
    _legend(axes)
    return figure


def most_confused(counts: NDArray[np.int64], class_names: Sequence[str]) -> str:
    """The most frequent mistakes in words; nothing where there is none.

    >>> most_confused(np.array([[9, 1], [3, 5]]), ["cat", "dog"])
    'dog is taken for cat (3 of 8), cat for dog (1 of 10)'
    """
    wrong = np.where(np.eye(len(counts), dtype=bool), 0, counts)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_TOLD].tolist()
    places = [divmod(place, len(counts)) for place in order]
    told = [
        f"{class_names[true]}{'' if number else ' is taken'} for {class_names[predicted]} "
        f"({wrong[true, predicted]:,} of {counts[true].sum():,})"
        for number, (true, predicted) in enumerate(places)
        if wrong[true, predicted]
    ]
    return ", ".join(told)


def _shades(shares: Shares, right: NDArray[np.bool_]) -> Shares:
    """From white to the full colour by the square root, so that small shares can be seen."""
    colours = np.where(right[..., None], to_rgb(style.GLOBAL_MODEL), to_rgb(style.WORST))
    shades: Shares = 1 - np.sqrt(shares)[..., None] * (1 - colours)
    return shades


def _number(axes: Axes, counts: NDArray[np.int64], shares: Shares) -> None:
    for true, predicted in np.argwhere(counts).tolist():
        number = axes.text(predicted, true, str(counts[true, predicted]))
        colour = "white" if shares[true, predicted] > 0.4 else style.INK
        number.set(fontsize=style.TICK - 1, color=colour, ha="center", va="center_baseline")


def _legend(axes: Axes) -> None:
    """Names the colour of right answers, and of wrong ones a few shades."""
    names = ["right", "taken for another: 1%", "10%", "100%"]
    shares = np.array([1.0, 0.01, 0.1, 1.0])
    shades = _shades(shares, shares.cumsum() == 1)
    handles = [Patch(color=c, label=n) for c, n in zip(shades.tolist(), names, strict=True)]
    style.legend_above(axes, len(names), handles, handlelength=1.0, columnspacing=1.0)
