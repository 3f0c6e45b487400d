"""The plots of a run that scores every client on samples of its own, made of plain data."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fl.report import style
from fl.report.plots import span, width_of
from fl.report.scores import Scores
from fl.report.words import percent

BANDS = ((0, 100, 0.16, "worst to best"), (10, 90, 0.3, "10th to 90th percentile"))
"""Percentiles between which the clients lie, how dark the band is, and its name."""
LEGEND = {"handlelength": 1.4, "columnspacing": 1.2}
SMALLEST_DOT, LARGEST_DOT = 2.0, 8.0  # diameters in points


def client_spread(rounds: Mapping[int, Sequence[float | None]]) -> Figure:
    """How accuracy is distributed over clients round by round: two bands and the mean.

    None: the client was not scored. In each round at least one was.
    """
    figure, axes = style.new_axes(style.HALF, 3.4)
    numbers = np.array(list(rounds), dtype=float)
    accuracy = [np.array([a for a in row if a is not None]) for row in rounds.values()]
    if len(numbers) == 1:  # a round alone gets a width, so that its bands can be seen
        numbers, accuracy = numbers + np.array([-0.4, 0.4]), accuracy * 2
    colour = style.GLOBAL_MODEL
    for low, high, alpha, label in BANDS:
        edges = np.array([np.percentile(row, (low, high)) for row in accuracy]).T
        axes.fill_between(numbers, *edges, color=colour, alpha=alpha, linewidth=0, label=label)
    axes.plot(numbers, [row.mean() for row in accuracy], color=colour, linewidth=2, label="mean")
    axes.set(xlabel="round", ylabel="accuracy", ylim=_limits(*accuracy))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    style.legend_above(axes, 3, **LEGEND)
    return figure


def client_accuracy(scores: Scores, alone: Scores | None = None) -> Figure:
    """A dot for each client that was scored, the worst first; a diamond where it was alone."""
    ranked, tested = scores.ranked, scores.tested
    here, places = np.array([tested[k] for k in ranked]), np.arange(len(ranked))
    figure, axes = style.new_axes(width_of(len(ranked)), 3.6)
    room = 72 * figure.get_figwidth() / len(ranked)
    size = min(max(0.6 * room, SMALLEST_DOT), LARGEST_DOT)
    tenth = len(scores.worst)
    for label, part, colour in (
        ("client", slice(tenth, None), style.GLOBAL_MODEL),
        ("worst tenth", slice(tenth), style.WORST),
    ):
        if len(here[part]):
            (dots,) = axes.plot(places[part], here[part], "o", color=colour, markersize=size)
            dots.set(label=label, clip_on=False)
    elsewhere = {} if alone is None else alone.tested
    there = np.array([elsewhere.get(k, np.nan) for k in ranked])
    if alone is not None:
        (dots,) = axes.plot(places, there, "D", color="white", markersize=0.55 * size, zorder=3)
        dots.set(label="the same client alone", clip_on=False)
        dots.set(markeredgecolor=style.INK, markeredgewidth=min(0.12 * size, 0.9))
        axes.vlines(places, there, here, color=style.RULE, linewidth=size / 4, zorder=1)
    mean = axes.axhline(scores.mean, color=style.INK, linestyle=(0, (4, 3)), linewidth=1.2)
    mean.set(label=f"mean {percent(scores.mean)}", zorder=1.5)
    axes.set(ylabel="accuracy", xlim=(-0.7, len(ranked) - 0.3), ylim=_limits(here, there))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _name_clients(figure, axes, ranked)
    style.legend_above(axes, 2 if figure.get_figwidth() < style.WIDE else 4, **LEGEND)
    return figure


def _limits(*shares: np.ndarray) -> tuple[float, float]:
    everyone = np.concatenate(shares)
    return span([float(np.nanmin(everyone)), float(np.nanmax(everyone))])


def _name_clients(figure: Figure, axes: Axes, ids: list[int]) -> None:
    """Names all clients or, as they stand in no order of ids, none."""
    if len(ids) <= style.NAMES_PER_INCH * figure.get_figwidth():
        axes.set(xlabel="client, the worst first")
        style.name_columns(figure, axes, [str(k) for k in ids])
    else:
        axes.set(xlabel=f"{len(ids):,} clients, the worst first", xticks=[])
