"""The picture of the clients' local training: their losses, a panel per role and model."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from fl.report import style
from fl.report.events import LossCurve
from fl.report.plots import LOG_FROM

MOST_LINES = 30  # clients in a panel up to which each has a line
BANDS = ((0, 100, 0.16), (10, 90, 0.3))
"""Percentiles between which the clients lie, and how dark the band is."""
FEW = 2.5  # decades up to which a logarithmic axis names more than the powers of ten
ACROSS = 3  # panels in a row


def loss_curves(curves: Sequence[LossCurve]) -> Figure:
    """Each client's loss by epoch, step or round; of many clients, how they are distributed."""
    panels = _by_kind(curves)
    columns = min(len(panels), ACROSS)
    rows = -(-len(panels) // ACROSS)
    width = style.HALF if columns == 1 else style.WIDE
    figure = Figure(figsize=(width, 3.4 * rows), facecolor="white", layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes, own in zip(places, panels, strict=False):
        _panel(axes, own)
        axes.set(xlabel=own[0].unit)
    for axes in places[: len(panels) : columns]:
        axes.set(ylabel="training loss")
    for axes in places[len(panels) :]:
        axes.remove()
    return figure


def has_bands(curves: Sequence[LossCurve]) -> bool:
    """Whether a panel shows bands in place of a line for each client."""
    return any(len(own) > MOST_LINES for own in _by_kind(curves))


def _by_kind(curves: Sequence[LossCurve]) -> list[list[LossCurve]]:
    return [list(own) for _, own in groupby(sorted(curves, key=_kind), key=_kind)]


def _kind(curve: LossCurve) -> tuple[str, str]:
    return curve.role, curve.model or ""


def _panel(axes: Axes, curves: list[LossCurve]) -> None:
    style.quiet(axes)
    colour = style.role_colour(curves[0].role)
    if len(curves) > MOST_LINES:
        _bands(axes, curves, colour)
    else:
        for curve in curves:
            marker = "o" if len(curve.steps) == 1 else None
            (line,) = axes.plot(curve.steps, curve.losses, color=colour, marker=marker)
            line.set(linewidth=1.1, alpha=0.75)
    title = ", ".join(part for part in _kind(curves[0]) if part)
    count = f"{len(curves):,} client{'s' if len(curves) > 1 else ''}"
    look = {"fontsize": style.LABEL, "color": style.INK}
    axes.set_title(f"{title}: {count}", look, loc="left", parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _scale(axes, np.concatenate([curve.losses for curve in curves]))


def _bands(axes: Axes, curves: list[LossCurve], colour: str) -> None:
    """At each step over the clients that were trained in it."""
    by_step: dict[float, list[float]] = {}
    for curve in curves:
        for step, loss in zip(curve.steps, curve.losses, strict=True):
            if np.isfinite(loss):
                by_step.setdefault(step, []).append(loss)
    steps = sorted(by_step)
    if not steps:
        return
    for low, high, alpha in BANDS:
        edges = np.array([np.percentile(by_step[step], (low, high)) for step in steps]).T
        axes.fill_between(steps, *edges, color=colour, alpha=alpha, linewidth=0)
    medians = [float(np.median(by_step[step])) for step in steps]
    axes.plot(steps, medians, color=colour, linewidth=2)


def _scale(axes: Axes, losses: np.ndarray) -> None:
    """A logarithmic axis where losses differ much, else one that begins at zero."""
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        return
    if finite.min() > 0 and finite.max() > LOG_FROM * finite.min():
        axes.set_yscale("log")
        decades = np.log10(finite.max() / finite.min())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < FEW else (1,)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif finite.min() >= 0:
        axes.set_ylim(bottom=0)
