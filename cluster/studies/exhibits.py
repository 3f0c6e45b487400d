"""The papers' figures, drawn from their runs; and which tables state their numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, product
from statistics import mean
from typing import Any

import numpy as np
from matplotlib import figure as drawn
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from cluster.studies.comparison import Figure
from cluster.studies.suite_tables import (
    LEVELS,
    TARGETS,
    curves,
    epochs_to_target,
    tell_clients,
    tell_domains,
    tell_fid,
    tell_forgetting,
    tell_hfldd,
    tell_rounds,
    tell_sent,
    tell_targets,
    until,
)
from fl.report import style

Draw = Callable[[Sequence[Figure]], drawn.Figure]
Look = Mapping[str, Any]
"""Colour, dashes and label of a method's line, as Matplotlib takes them."""
Line = Callable[[Axes, Figure, Look], None]
DASHES = ("-", "--", ":", "-.")
CLASSES = {"1": "1 class per client", "10": "IID"}


def draw_targets(figures: Sequence[Figure]) -> drawn.Figure:
    """Epochs over target, a panel per data set and alpha."""

    def line(axes: Axes, figure: Figure, look: Look) -> None:
        reached = {t: epochs_to_target(figure, t / 100) for t in TARGETS}
        points = {t: epochs for t, epochs in reached.items() if epochs is not None}
        axes.plot(list(points), list(points.values()), marker="o", **look)

    return panels_of(figures, line, "target accuracy, %", "epochs at the server")


def draw_curves(time: str) -> Draw:
    """Accuracy over epochs or rounds, a panel per data set and alpha: mean and seeds' range."""

    def line(axes: Axes, figure: Figure, look: Look) -> None:
        found = curves(figure)
        times = np.arange(found.shape[1])
        axes.plot(times, found.mean(axis=0), **look)
        axes.fill_between(times, found.min(0), found.max(0), color=look["color"], alpha=0.15)

    return lambda figures: _accuracy(panels_of(figures, line, time, "accuracy"))


def draw_setting(name: str, label: str) -> Draw:
    """Accuracy over a setting, a panel per data set and alpha: mean and deviation."""

    def draw(figures: Sequence[Figure]) -> drawn.Figure:
        def line(axes: Axes, figure: Figure, look: Look) -> None:
            same = [f for f in figures if _line_of(f) == _line_of(figure)]
            x = [float(dict(f.cell.settings)[name]) for f in same]
            y = [f.mean / 100 for f in same]
            axes.errorbar(x, y, [(f.spread or 0) / 100 for f in same], marker="o", **look)
            # Explicit limits, since those that a log scale finds for a single value leave it out.
            axes.set(xscale="log", xlim=(min(x) / 1.2, max(x) * 1.2))
            axes.set_xticks(x, labels=[f"{value:g}" for value in x])
            axes.minorticks_off()

        return _accuracy(panels_of(_lines(figures), line, label, "accuracy"))

    return draw


def draw_fid(figures: Sequence[Figure]) -> drawn.Figure:
    """Accuracy over the distance of the samples: one point per number of CVAE epochs."""

    def line(axes: Axes, figure: Figure, look: Look) -> None:
        same = [f for f in figures if _line_of(f) == _line_of(figure)]
        x = [mean(result["fid"]["kept"] for result in f.results) for f in same]
        axes.plot(x, [f.mean / 100 for f in same], marker="o", **look)

    label = "Fréchet distance (own features)"
    return _accuracy(panels_of(_lines(figures), line, label, "accuracy"))


def draw_traffic(figures: Sequence[Figure]) -> drawn.Figure:
    """HFLDD's Figure 6: MiB over accuracy, a panel per place; a method that never has an accuracy
    ends before it."""

    def line(axes: Axes, figure: Figure, look: Look) -> None:
        reached = {level: until(figure, level / 100) for level in LEVELS}
        points = {level: found[1] for level, found in reached.items() if found}
        axes.plot(list(points), list(points.values()), marker="o", **look)
        axes.set(yscale="log", xlim=(LEVELS[0] - 5, 100))

    with_rounds = [figure for figure in figures if "per_round" in figure.results[0]]
    return panels_of(with_rounds or figures, line, "accuracy, %", "MiB until then")


def draw_clusters(figures: Sequence[Figure]) -> drawn.Figure:
    """HFLDD's Figure 4, a panel per place: a line of clients for each cluster, its head a square;
    first seed."""

    def line(axes: Axes, figure: Figure, look: Look) -> None:
        result = figure.results[0]
        pairs = zip(result.get("clusters", []), result.get("heads", []), strict=True)
        for row, (cluster, head) in enumerate(pairs, start=1):
            members = [head, *(k for k in cluster if k != head)]
            axes.plot(range(1, len(members) + 1), [row] * len(members), color=style.RULE, zorder=0)
            axes.scatter(range(2, len(members) + 1), [row] * (len(members) - 1), color=style.TIME)
            axes.scatter([1], [row], marker="s", color=look["color"])
        axes.set(xlim=(0.5, largest + 0.5), ylim=(0.5, most + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))

    clustered = [figure for figure in figures if figure.cell.method == "hfldd"]
    found = [figure.results[0].get("clusters", []) for figure in clustered]
    most = max(map(len, found), default=1)
    largest = max((len(cluster) for clusters in found for cluster in clusters), default=1)
    return panels_of(clustered or figures[:1], line, "head, then members", "cluster")


def panels_of(figures: Sequence[Figure], line: Line, x: str, y: str) -> drawn.Figure:
    """A sheet with a panel for each place, and a line for each figure; methods in a legend."""
    places = list(dict.fromkeys(place(figure) for figure in figures))
    looks = _looks(figures)
    width = style.WIDE * max(1.0, len(places) / 3) if len(places) > 1 else style.HALF
    sheet, panels = style.new_panels(width, 3.6, len(places))
    for figure in figures:
        line(panels[places.index(place(figure))], figure, looks[figure.cell.method])
    for title, axes in zip(places, panels, strict=True):
        axes.set(xlabel=x)
        axes.set_title(title, fontsize=style.LABEL, color=style.INK)
    panels[0].set(ylabel=y)
    handles, labels = panels[0].get_legend_handles_labels()
    sheet.legend(
        handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=style.TICK
    )
    return sheet


def place(figure: Figure) -> str:
    """The panel that a cell is in: its data set, model if that is a setting, and partition."""
    settings = dict(figure.cell.settings)
    named = [figure.cell.row.partition("-")[0], *filter(None, [settings.get("classifier.model")])]
    if "alpha" in settings:
        return ", ".join([*named, f"Dir({settings['alpha']})"])
    if "C" in settings:
        classes = CLASSES.get(settings["C"], f"{settings['C']} classes per client")
        return ", ".join([*named, classes])
    return "a client per domain"


def _looks(figures: Sequence[Figure]) -> dict[str, Look]:
    """Each method's look, by its name: Matplotlib's colours in turn, then again with dashes."""
    methods = dict.fromkeys(figure.cell.method for figure in figures)
    looks = cycle(product(DASHES, (f"C{number}" for number in range(10))))
    return {
        method: {"color": colour, "linestyle": dashes, "label": method}
        for method, (dashes, colour) in zip(methods, looks, strict=False)
    }


def _accuracy(sheet: drawn.Figure) -> drawn.Figure:
    sheet.axes[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    return sheet


def _line_of(figure: Figure) -> tuple[str, str]:
    return place(figure), figure.cell.method


def _lines(figures: Sequence[Figure]) -> list[Figure]:
    """A figure for each line, of those that are its points."""
    return list({_line_of(figure): figure for figure in figures}.values())


@dataclass(frozen=True)
class Exhibit:
    """How one of the papers' figures is drawn, and which tables state its numbers."""

    draw: Draw
    tell: Callable[[Sequence[Figure]], list[str]] = lambda figures: []
    """Not given where the table of accuracies states all that the figure shows."""
    also: Mapping[str, Draw] = field(default_factory=dict)
    """Further pictures, by what their names end in."""


_OVER_ROUNDS = draw_curves("round")
EXHIBITS = {
    "fig5": Exhibit(draw_targets, tell_targets),
    "fig6": Exhibit(draw_curves("epoch at the server"), tell_forgetting),
    "fig7": Exhibit(draw_setting("classifier.epochs", "local epochs")),
    "fig8": Exhibit(draw_setting("num-samples", "synthetic samples")),
    "fid": Exhibit(draw_fid, tell_fid),
    "fedaf": Exhibit(_OVER_ROUNDS, tell_rounds),
    "fedaf-table2": Exhibit(_OVER_ROUNDS, tell_domains),
    "fedaf-table6": Exhibit(_OVER_ROUNDS, tell_rounds),
    "fedd2s-table2": Exhibit(_OVER_ROUNDS, tell_clients),
    "fedd2s-table3": Exhibit(_OVER_ROUNDS, tell_clients),
    "fedd2s-fig5": Exhibit(draw_setting("classifier.epochs", "local epochs"), tell_clients),
    "fedd2s-fig6": Exhibit(_OVER_ROUNDS, tell_clients),
    "fedd2s-fig7": Exhibit(draw_setting("dropping.rate", "dropping rate"), tell_clients),
    "hfldd": Exhibit(
        _OVER_ROUNDS, tell_hfldd, {"traffic": draw_traffic, "clusters": draw_clusters}
    ),
    "hfldd-table5": Exhibit(_OVER_ROUNDS),
    "hfldd-table6": Exhibit(_OVER_ROUNDS, tell_sent),
    "hfldd-fig7": Exhibit(_OVER_ROUNDS, tell_sent),
}
