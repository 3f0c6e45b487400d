"""The paper's figures, drawn from their runs."""

from collections.abc import Callable, Sequence
from statistics import mean

import numpy as np
from matplotlib import figure as drawn
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from cluster.studies.comparison import Figure
from cluster.studies.looks import look, place
from cluster.studies.suite_tables import TARGETS, curves, epochs_to_target
from fl.report import style


def draw_targets(figures: Sequence[Figure]) -> drawn.Figure:
    """Epochs over target, a panel per data set and alpha."""

    def line(axes: Axes, figure: Figure) -> None:
        reached = {t: epochs_to_target(figure, t / 100) for t in TARGETS}
        points = {t: epochs for t, epochs in reached.items() if epochs is not None}
        axes.plot(list(points), list(points.values()), marker="o", **look(figure))

    return panels_of(figures, line, "target accuracy, %", "epochs at the server")


def draw_curves(time: str) -> Callable[[Sequence[Figure]], drawn.Figure]:
    """Accuracy over epochs or rounds, a panel per data set and alpha: mean and seeds' range."""

    def line(axes: Axes, figure: Figure) -> None:
        found, looks = curves(figure), look(figure)
        times = np.arange(found.shape[1])
        axes.plot(times, found.mean(axis=0), **looks)
        axes.fill_between(times, found.min(0), found.max(0), color=looks["color"], alpha=0.15)

    return lambda figures: _accuracy(panels_of(figures, line, time, "accuracy"))


def draw_setting(name: str, label: str) -> Callable[[Sequence[Figure]], drawn.Figure]:
    """Accuracy over a setting, a panel per data set and alpha: mean and deviation."""

    def draw(figures: Sequence[Figure]) -> drawn.Figure:
        def line(axes: Axes, figure: Figure) -> None:
            same = [f for f in figures if _line_of(f) == _line_of(figure)]
            x = [float(dict(f.cell.settings)[name]) for f in same]
            y = [f.mean / 100 for f in same]
            axes.errorbar(x, y, [(f.spread or 0) / 100 for f in same], marker="o", **look(figure))
            # Explicit limits, since those that a log scale finds for a single value leave it out.
            axes.set(xscale="log", xlim=(min(x) / 1.2, max(x) * 1.2))
            axes.set_xticks(x, labels=[f"{value:g}" for value in x])
            axes.minorticks_off()

        lines = {_line_of(figure): figure for figure in figures}  # one for each line
        return _accuracy(panels_of(list(lines.values()), line, label, "accuracy"))

    return draw


def draw_fid(figures: Sequence[Figure]) -> drawn.Figure:
    """Accuracy over the distance of the samples: one point per number of CVAE epochs."""

    def line(axes: Axes, figure: Figure) -> None:
        same = [f for f in figures if _line_of(f) == _line_of(figure)]
        x = [mean(result["fid"]["kept"] for result in f.results) for f in same]
        axes.plot(x, [f.mean / 100 for f in same], marker="o", **look(figure))

    lines = {_line_of(figure): figure for figure in figures}
    label = "Fréchet distance (own features)"
    return _accuracy(panels_of(list(lines.values()), line, label, "accuracy"))


def panels_of(
    figures: Sequence[Figure], line: Callable[[Axes, Figure], None], x: str, y: str
) -> drawn.Figure:
    """A sheet with a panel for each place, and a line for each figure; methods in a legend."""
    places = list(dict.fromkeys(place(figure) for figure in figures))
    width = style.WIDE * max(1.0, len(places) / 3) if len(places) > 1 else style.HALF
    sheet, panels = style.new_panels(width, 3.6, len(places))
    for figure in figures:
        line(panels[places.index(place(figure))], figure)
    for title, axes in zip(places, panels, strict=True):
        axes.set(xlabel=x)
        axes.set_title(title, fontsize=style.LABEL, color=style.INK)
    panels[0].set(ylabel=y)
    handles, labels = panels[0].get_legend_handles_labels()
    sheet.legend(
        handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=style.TICK
    )
    return sheet


def _accuracy(sheet: drawn.Figure) -> drawn.Figure:
    sheet.axes[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    return sheet


def _line_of(figure: Figure) -> tuple[str, str]:
    return place(figure), figure.cell.method
