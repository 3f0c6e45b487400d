"""Writes a sweep's report page: its trials, their effects, and the best one's gain."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, PercentFormatter

from fl.json_files import SettingValues
from fl.report import style
from fl.report.template import write_file, write_page
from fl.report.words import percent, tally
from fl.spaces import Choice, Distribution, LogUniform, Space
from tune.outcome import Sweep, gained, listed, ranked, with_spread
from tune.rows import shown

# The pictures of a sweep's report: plain data in, a matplotlib figure out.

QUALITY = LinearSegmentedColormap.from_list("quality", ["#c9d1d9", style.GLOBAL_MODEL])
"""From pale to the global model's colour, which means the best."""
PER_ROW = 3
"""Parameters beside each other."""


def parallel_coordinates(
    space: Space, tried: Sequence[SettingValues], scores: Sequence[float], best: int
) -> Figure:
    """A line per trial across all parameters to its score.

    Args:
        space: the parameters, in their order.
        tried: each trial's settings.
        scores: each trial's accuracy.
        best: which trial is the best.
    """
    figure, axes = style.new_axes(style.WIDE, 4.2, grid="x")
    lowest, highest = min(scores), max(scores)
    heights = [
        *([_place(d, settings[name]) for settings in tried] for name, d in space.items()),
        [_within(score, lowest, highest) for score in scores],
    ]
    for trial in sorted(range(len(tried)), key=lambda t: (t == best, scores[t])):
        line = [column[trial] for column in heights]
        shade = style.BEST if trial == best else QUALITY(_within(scores[trial], lowest, highest))
        width = 3.0 if trial == best else 1.4
        axes.plot(range(len(line)), line, color=shade, linewidth=width, clip_on=False)
    for column, distribution in enumerate(space.values()):
        _label_axis(axes, column, _ticks(distribution))
    ends = [(0.0, percent(lowest)), (1.0, percent(highest))]
    _label_axis(axes, len(space), ends)
    axes.set(ylim=(-0.06, 1.06), yticks=[], xlim=(-0.2, len(space) + 0.4))
    axes.spines[["left", "bottom"]].set_visible(False)
    style.name_columns(figure, axes, [*space, "accuracy"])
    return figure


def effects(
    space: Space, tried: Sequence[SettingValues], scores: Sequence[float], best: int
) -> Figure:
    """Accuracy over each parameter's value, a panel each; arguments as above."""
    rows = -(-len(space) // PER_ROW)
    columns = min(len(space), PER_ROW)
    figure = Figure(figsize=(style.WIDE, 2.9 * rows), facecolor="white", layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for panel, (name, distribution) in zip(panels.flat, space.items(), strict=False):
        _effect(panel, name, distribution, [t[name] for t in tried], scores, best)
    for panel in panels.flat[len(space) :]:
        panel.set_visible(False)
    for panel in panels[:, 0]:
        panel.set_ylabel("accuracy", size=style.LABEL, color=style.INK)
    return figure


def _effect(
    axes: Axes,
    name: str,
    distribution: Distribution,
    values: Sequence[Any],
    scores: Sequence[float],
    best: int,
) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(style.MUTED)
    axes.tick_params(labelsize=style.TICK, colors=style.MUTED, labelcolor=style.INK)
    axes.grid(axis="y", color=style.RULE)
    axes.set_axisbelow(True)
    places: Sequence[Any] = values
    if isinstance(distribution, Choice):
        names = _in_order([*distribution.values, *values])  # with the default's value
        places = [names.index(str(value)) for value in values]
        axes.set_xticks(range(len(names)), labels=names, parse_math=False)
        axes.set_xlim(-0.5, len(names) - 0.5)
    elif isinstance(distribution, LogUniform):
        axes.set_xscale("log")
        axes.set_xlim(min(distribution.low, *values) / 1.15, max(distribution.high, *values) * 1.15)
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xmargin(0.06)
        axes.update_datalim([(distribution.low, scores[0]), (distribution.high, scores[0])])
    for trial in sorted(range(len(scores)), key=lambda t: t == best):  # the best on top
        colour = style.BEST if trial == best else style.GLOBAL_MODEL
        axes.scatter(
            places[trial], scores[trial], c=colour, s=42, edgecolors="white", linewidths=0.7
        )
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(name, size=style.LABEL, color=style.INK)


def _in_order(values: Sequence[Any]) -> list[str]:
    """The values as words, each once: numbers by size, words as they come."""
    if all(isinstance(value, int | float) for value in values):
        values = sorted(values)
    return list(dict.fromkeys(map(str, values)))


def _place(distribution: Distribution, value: Any) -> float:
    """A value's position on its axis, clipped to the range's ends at 0 and 1."""
    if isinstance(distribution, Choice):
        names = [str(v) for v in distribution.values]
        at = names.index(str(value)) if str(value) in names else _nearest(distribution, value)
        return 0.5 if len(names) == 1 else at / (len(names) - 1)
    low, high = distribution.low, distribution.high
    if isinstance(distribution, LogUniform):
        low, high, value = np.log(low), np.log(high), np.log(max(value, low))
    return min(1.0, max(0.0, _within(value, low, high)))


def _nearest(distribution: Choice, value: Any) -> int:
    numbers = [v for v in distribution.values if isinstance(v, int | float)]
    if len(numbers) < len(distribution.values) or not isinstance(value, int | float):
        return 0
    return min(range(len(numbers)), key=lambda i: abs(numbers[i] - value))


def _within(value: float, low: float, high: float) -> float:
    return 0.5 if high == low else (value - low) / (high - low)


def _ticks(distribution: Distribution) -> list[tuple[float, str]]:
    if isinstance(distribution, Choice):
        return [(_place(distribution, v), str(v)) for v in distribution.values]
    return [(0.0, f"{distribution.low:g}"), (1.0, f"{distribution.high:g}")]


def _label_axis(axes: Axes, column: int, ticks: Sequence[tuple[float, str]]) -> None:
    for height, text in ticks:
        axes.annotate(
            text,
            (column, height),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=style.TICK - 1,
            color=style.INK,
            parse_math=False,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
        )


def write_report(sweep: Sweep) -> Path:
    """Draws the pictures and writes ``report.html``; returns its path."""
    scored = [row for row in sweep.rows if row.scores]
    tried = [row.settings for row in scored]
    scores = [row.scores["accuracy"] for row in scored]
    best = scored.index(sweep.best)
    drawn = {
        "parallel": style.png(parallel_coordinates(sweep.space, tried, scores, best)),
        "effects": style.png(effects(sweep.space, tried, scores, best)),
    }
    for name, png in drawn.items():
        write_file(sweep.folder / "plots" / f"{name}.png", png)
    path = sweep.folder / "report.html"
    write_page(
        path,
        Path(__file__).with_name("sweep.html.j2"),
        {"gained": gained, "listed": listed, "shown": shown, "spread": with_spread},
        sweep=sweep,
        seeds=tally(["seed"] * len(sweep.comparison.best.values)),
        rows=ranked(sweep.rows, sweep.options),
        **drawn,
    )
    return path
