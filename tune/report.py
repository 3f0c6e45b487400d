"""Writes a sweep's report page: its trials, their effects, and the best one's gain."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, PercentFormatter

from fl.json_files import SettingValues
from fl.report import style
from fl.report.template import write_file, write_page
from fl.report.words import tally
from fl.spaces import Choice, Distribution, LogUniform, Space
from tune.outcome import Sweep, gained, ranked, with_spread
from tune.rows import shown

PER_ROW = 3
"""Parameters beside each other."""


def effects(
    space: Space, tried: Sequence[SettingValues], scores: Sequence[float], best: int
) -> Figure:
    """Accuracy over each parameter's value, a panel each.

    Args:
        space: the parameters, in their order.
        tried: each trial's settings.
        scores: each trial's accuracy.
        best: which trial is the best.
    """
    rows, columns = -(-len(space) // PER_ROW), min(len(space), PER_ROW)
    figure = Figure(figsize=(style.WIDE, 2.9 * rows), facecolor="white", layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, (name, distribution) in zip(panels.flat, space.items(), strict=False):
        style.quiet(axes)
        values = [settings[name] for settings in tried]
        _effect(axes, distribution, values, scores, best)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel(name)
    for axes in panels.flat[len(space) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("accuracy")
    return figure


def _effect(
    axes: Axes,
    distribution: Distribution,
    values: Sequence[Any],
    scores: Sequence[float],
    best: int,
) -> None:
    places: Sequence[Any] = values
    axes.set_xmargin(0.06)
    if isinstance(distribution, Choice):
        names = _in_order([*distribution.values, *values])  # with the default's value
        places = [names.index(str(value)) for value in values]
        axes.set_xticks(range(len(names)), labels=names, parse_math=False)
        axes.set_xlim(-0.5, len(names) - 0.5)
    else:
        axes.set_xscale("log" if isinstance(distribution, LogUniform) else "linear")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.update_datalim([(end, scores[0]) for end in (distribution.low, distribution.high)])
    order = sorted(range(len(scores)), key=lambda trial: trial == best)  # the best on top
    colours = [style.BEST if trial == best else style.GLOBAL_MODEL for trial in order]
    at, heights = [places[trial] for trial in order], [scores[trial] for trial in order]
    axes.scatter(at, heights, c=colours, s=42, edgecolors="white", linewidths=0.7)


def _in_order(values: Sequence[Any]) -> list[str]:
    """The values as words, each once: numbers by size, words as they come."""
    if all(isinstance(value, int | float) for value in values):
        values = sorted(values)
    return list(dict.fromkeys(map(str, values)))


def write_report(sweep: Sweep) -> Path:
    """Draws each setting's effect and writes ``report.html``; returns its path."""
    scored = [row for row in sweep.rows if row.scores]
    tried = [row.settings for row in scored]
    scores = [row.scores["accuracy"] for row in scored]
    picture = style.png(effects(sweep.space, tried, scores, scored.index(sweep.best)))
    write_file(sweep.folder / "plots" / "effects.png", picture)
    path = sweep.folder / "report.html"
    write_page(
        path,
        Path(__file__).with_name("sweep.html.j2"),
        {"gained": gained, "shown": shown, "spread": with_spread},
        sweep=sweep,
        seeds=tally(["seed"] * len(sweep.comparison["best"].values)),
        rows=ranked(sweep.rows, sweep.options),
        effects=picture,
    )
    return path
