"""The paper's figures, drawn from their runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from matplotlib import figure as drawn
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from cluster.comparison import Figure
from cluster.suite_tables import (
    TARGETS,
    curves,
    epochs_to_target,
    tell_fid,
    tell_forgetting,
    tell_nothing_more,
    tell_targets,
)
from fl.report import style

COLOURS = {
    "fedmho": style.INK,
    "fedmho-md": style.ROLES["classifier"],
    "fedmho-sd": style.ROLES["generator"],
    "feddf": style.OTHER_ROLE,
    "dense": style.GLOBAL_MODEL,
    "co-boosting": style.BEST,
    "fedcvae-ens": style.TIME,
}


@dataclass(frozen=True)
class Exhibit:
    """How one of the paper's figures is drawn and told."""

    draw: Callable[[Sequence[Figure]], drawn.Figure]
    tell: Callable[[Sequence[Figure]], list[str]]


def draw_targets(figures: Sequence[Figure]) -> drawn.Figure:
    """Epochs over target, a panel per alpha."""

    def line(axes: Axes, figure: Figure) -> None:
        reached = {t: epochs_to_target(figure, t / 100) for t in TARGETS}
        points = {t: epochs for t, epochs in reached.items() if epochs is not None}
        axes.plot(list(points), list(points.values()), marker="o", **_look(figure))

    return _panels(figures, line, "target accuracy, %", "epochs at the server")


def draw_curves(figures: Sequence[Figure]) -> drawn.Figure:
    """Accuracy over epochs, a panel per alpha: mean, and the range of the seeds."""

    def line(axes: Axes, figure: Figure) -> None:
        found, look = curves(figure), _look(figure)
        epochs = np.arange(found.shape[1])
        axes.plot(epochs, found.mean(axis=0), **look)
        axes.fill_between(epochs, found.min(0), found.max(0), color=look["color"], alpha=0.15)

    return _accuracy(_panels(figures, line, "epoch at the server", "accuracy"))


def draw_setting(name: str, label: str) -> Callable[[Sequence[Figure]], drawn.Figure]:
    """Accuracy over a setting, a panel per alpha: mean and deviation."""

    def draw(figures: Sequence[Figure]) -> drawn.Figure:
        def line(axes: Axes, figure: Figure) -> None:
            same = [f for f in figures if _line_of(f) == _line_of(figure)]
            x = [float(dict(f.cell.settings)[name]) for f in same]
            y = [f.mean / 100 for f in same]
            axes.errorbar(x, y, [(f.spread or 0) / 100 for f in same], marker="o", **_look(figure))
            axes.set(xscale="log")
            axes.set_xticks(x, labels=[f"{value:g}" for value in x])
            axes.minorticks_off()

        lines = {_line_of(figure): figure for figure in figures}  # one for each line
        return _accuracy(_panels(list(lines.values()), line, label, "accuracy"))

    return draw


def draw_fid(figures: Sequence[Figure]) -> drawn.Figure:
    """Accuracy over the distance of the samples: one point per number of CVAE epochs."""

    def line(axes: Axes, figure: Figure) -> None:
        same = [f for f in figures if _line_of(f) == _line_of(figure)]
        x = [mean(result["fid"]["kept"] for result in f.results) for f in same]
        axes.plot(x, [f.mean / 100 for f in same], marker="o", **_look(figure))

    lines = {_line_of(figure): figure for figure in figures}
    label = "Fréchet distance (own features)"
    return _accuracy(_panels(list(lines.values()), line, label, "accuracy"))


EXHIBITS = {
    "fig5": Exhibit(draw_targets, tell_targets),
    "fig6": Exhibit(draw_curves, tell_forgetting),
    "fig7": Exhibit(draw_setting("classifier.epochs", "local epochs"), tell_nothing_more),
    "fig8": Exhibit(draw_setting("num-samples", "synthetic samples"), tell_nothing_more),
    "fid": Exhibit(draw_fid, tell_fid),
}


def _panels(
    figures: Sequence[Figure], line: Callable[[Axes, Figure], None], x: str, y: str
) -> drawn.Figure:
    alphas = list(dict.fromkeys(dict(figure.cell.settings)["alpha"] for figure in figures))
    width = style.WIDE if len(alphas) > 1 else style.HALF
    sheet, panels = style.new_panels(width, 3.6, len(alphas))
    for figure in figures:
        line(panels[alphas.index(dict(figure.cell.settings)["alpha"])], figure)
    for alpha, axes in zip(alphas, panels, strict=True):
        axes.set(xlabel=x)
        axes.set_title(f"Dir({alpha})", fontsize=style.LABEL, color=style.INK)
    panels[0].set(ylabel=y)
    handles, labels = panels[0].get_legend_handles_labels()
    sheet.legend(
        handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=style.TICK
    )
    return sheet


def _accuracy(sheet: drawn.Figure) -> drawn.Figure:
    sheet.axes[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    return sheet


def _look(figure: Figure) -> dict[str, Any]:
    return {"color": COLOURS[figure.cell.method], "label": figure.cell.method}


def _line_of(figure: Figure) -> tuple[str, str]:
    return dict(figure.cell.settings)["alpha"], figure.cell.method
