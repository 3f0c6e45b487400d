"""The paper's figures, drawn from their runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from matplotlib import figure as drawn
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from cluster.studies.comparison import Figure
from cluster.studies.suite_tables import (
    TARGETS,
    curves,
    epochs_to_target,
    tell_clients,
    tell_domains,
    tell_fid,
    tell_forgetting,
    tell_nothing_more,
    tell_rounds,
    tell_targets,
)
from fl.json_values import JsonObject
from fl.report import style

COLOURS = {
    "fedmho": style.INK,
    "fedmho-md": style.ROLES["classifier"],
    "fedmho-sd": style.ROLES["generator"],
    "feddf": style.OTHER_ROLE,
    "dense": style.GLOBAL_MODEL,
    "co-boosting": style.BEST,
    "fedcvae-ens": style.TIME,
    "fedaf": style.INK,
    "fedaf-without-cdc": style.INK,
    "fedaf-without-lgkm": style.INK,
    "fedaf-clipped": style.INK,
    "feddm": style.ROLES["generator"],
    "fedavg": style.TIME,
    "fedprox": style.BEST,
    "fedbn": style.ROLES["classifier"],
    "fedbn-by-domain": style.ROLES["classifier"],
    "moon": style.OTHER_ROLE,
    "feddyn": style.GLOBAL_MODEL,
    "fedgen": style.PARTS["overhead"],
    "local": style.WORST,
    "fedavg-tuned": style.TIME,
    "fedmd": style.OTHER_ROLE,
    "fedper": style.ROLES["classifier"],
    "fedper+": style.ROLES["classifier"],
    "fedrep": style.ROLES["generator"],
    "fedrep+": style.ROLES["generator"],
    "fedict": style.GLOBAL_MODEL,
    "pfedsd": style.BEST,
    "fedd2s": style.INK,
    "fedd2s-fixed": style.TIME,
    "fedd2s-from-F2": style.TIME,
    "fedd2s-from-F1": style.ROLES["classifier"],
    "fedd2s-from-C3": style.INK,
    "fedd2s-from-C2": style.ROLES["generator"],
    "fedd2s-mse-from-F2": style.TIME,
    "fedd2s-mse-from-F1": style.ROLES["classifier"],
    "fedd2s-mse-from-C3": style.INK,
    "fedd2s-mse-from-C2": style.ROLES["generator"],
}
DASHES = {
    "fedaf-without-cdc": "--",
    "fedaf-without-lgkm": ":",
    "fedaf-clipped": "-.",
    "fedavg-tuned": "--",
    "fedper+": "--",
    "fedrep+": "--",
    **{f"fedd2s-mse-from-{name}": "--" for name in ("F2", "F1", "C3", "C2")},
}
"""Variants of a method have its colour."""


@dataclass(frozen=True)
class Exhibit:
    """How one of the paper's figures is drawn, and which tables state its numbers."""

    draw: Callable[[Sequence[Figure]], drawn.Figure]
    tell: Callable[[Sequence[Figure]], list[str]]


def draw_targets(figures: Sequence[Figure]) -> drawn.Figure:
    """Epochs over target, a panel per data set and alpha."""

    def line(axes: Axes, figure: Figure) -> None:
        reached = {t: epochs_to_target(figure, t / 100) for t in TARGETS}
        points = {t: epochs for t, epochs in reached.items() if epochs is not None}
        axes.plot(list(points), list(points.values()), marker="o", **_look(figure))

    return _panels(figures, line, "target accuracy, %", "epochs at the server")


def draw_curves(time: str) -> Callable[[Sequence[Figure]], drawn.Figure]:
    """Accuracy over epochs or rounds, a panel per data set and alpha: mean and seeds' range."""

    def line(axes: Axes, figure: Figure) -> None:
        found, look = curves(figure), _look(figure)
        times = np.arange(found.shape[1])
        axes.plot(times, found.mean(axis=0), **look)
        axes.fill_between(times, found.min(0), found.max(0), color=look["color"], alpha=0.15)

    return lambda figures: _accuracy(_panels(figures, line, time, "accuracy"))


def draw_setting(name: str, label: str) -> Callable[[Sequence[Figure]], drawn.Figure]:
    """Accuracy over a setting, a panel per data set and alpha: mean and deviation."""

    def draw(figures: Sequence[Figure]) -> drawn.Figure:
        def line(axes: Axes, figure: Figure) -> None:
            same = [f for f in figures if _line_of(f) == _line_of(figure)]
            x = [float(dict(f.cell.settings)[name]) for f in same]
            y = [f.mean / 100 for f in same]
            axes.errorbar(x, y, [(f.spread or 0) / 100 for f in same], marker="o", **_look(figure))
            # Explicit limits, since those that a log scale finds for a single value leave it out.
            axes.set(xscale="log", xlim=(min(x) / 1.2, max(x) * 1.2))
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
    "fig6": Exhibit(draw_curves("epoch at the server"), tell_forgetting),
    "fig7": Exhibit(draw_setting("classifier.epochs", "local epochs"), tell_nothing_more),
    "fig8": Exhibit(draw_setting("num-samples", "synthetic samples"), tell_nothing_more),
    "fid": Exhibit(draw_fid, tell_fid),
    "fedaf": Exhibit(draw_curves("round"), tell_rounds),
    "fedaf-table2": Exhibit(draw_curves("round"), tell_domains),
    "fedaf-table6": Exhibit(draw_curves("round"), tell_rounds),
    "fedd2s-table2": Exhibit(draw_curves("round"), tell_clients),
    "fedd2s-table3": Exhibit(draw_curves("round"), tell_clients),
    "fedd2s-fig5": Exhibit(draw_setting("classifier.epochs", "local epochs"), tell_clients),
    "fedd2s-fig6": Exhibit(draw_curves("round"), tell_clients),
    "fedd2s-fig7": Exhibit(draw_setting("dropping.rate", "dropping rate"), tell_clients),
}


def _panels(
    figures: Sequence[Figure], line: Callable[[Axes, Figure], None], x: str, y: str
) -> drawn.Figure:
    places = list(dict.fromkeys(_place(figure) for figure in figures))
    width = style.WIDE * max(1.0, len(places) / 3) if len(places) > 1 else style.HALF
    sheet, panels = style.new_panels(width, 3.6, len(places))
    for figure in figures:
        line(panels[places.index(_place(figure))], figure)
    for (dataset, alpha), axes in zip(places, panels, strict=True):
        axes.set(xlabel=x)
        title = f"{dataset}, Dir({alpha})" if alpha else "a client per domain"
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


def _look(figure: Figure) -> JsonObject:
    method = figure.cell.method
    return {"color": COLOURS[method], "label": method, "linestyle": DASHES.get(method, "-")}


def _place(figure: Figure) -> tuple[str, str | None]:
    """Data set and alpha, which have one panel each; a folder of domains has no alpha."""
    return figure.cell.row.partition("-")[0], dict(figure.cell.settings).get("alpha")


def _line_of(figure: Figure) -> tuple[tuple[str, str | None], str]:
    return _place(figure), figure.cell.method
