"""Several runs on one page: their figures side by side, their accuracy curves in one picture.

Runs that differ by their seed alone share a row and a curve: mean and standard deviation.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fl.errors import UserError
from fl.report import style, words
from fl.report.groups import Group, groups_of
from fl.report.page import write
from fl.report.plots import STEPS
from fl.report.read import RunRecord, read_run
from fl.report.template import HERE, render

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1f2933", "#7b8794")
"""The runs' colours in order; from the ninth run on they repeat, with dashes."""


def write_comparison(run_dirs: Sequence[Path], page: Path) -> Path:
    """Writes the page, the best configuration first; returns its path.

    Raises:
        UserError: a directory is no run, or holds one that is not finished.
    """
    runs = [read_run(run_dir) for run_dir in run_dirs]
    for run in runs:
        if run.result is None:
            raise UserError(f"{run.path} is not finished: it has no result.json to compare")
    groups = sorted(groups_of(runs), key=lambda group: -(group.mean("accuracy") or 0.0))
    filters = {
        "percent": words.percent,
        "points": words.points,
        "duration": words.duration,
        "size": words.size,
        "base64": style.base64,
    }
    curves = [group for group in groups if all(run.accuracy for run in group.runs)]
    in_rounds = [run for run in runs if run.rounds]
    content = render(
        HERE / "compare.html.j2",
        filters,
        groups=groups,
        runs=runs,
        warning=_warning(groups),
        target=_common_target(in_rounds),
        overhead=_overhead,
        step=_step(curves),
        picture=style.svg(accuracy_curves(curves)) if curves else None,
        width=round(100 * style.WIDE),
    )
    write(page, content.encode())
    return page


def accuracy_curves(groups: Sequence[Group]) -> Figure:
    """Accuracy after each round or epoch of fusion, a line per group; 0 is its start.

    Of several seeds the line is the mean, in a band of one standard deviation to either side.
    """
    figure, axes = style.new_axes(style.WIDE, 4.2)
    for number, group in enumerate(groups):
        steps, colour = list(group.curve), COLOURS[number % len(COLOURS)]
        means = [fmean(values) for values in group.curve.values()]
        count = len(group.runs)
        axes.plot(
            steps,
            means,
            color=colour,
            linestyle="-" if number < len(COLOURS) else "--",
            linewidth=2,
            label=_label(group).replace("$", r"\$"),  # a name is no formula
        )
        if count > 1:
            spreads = [stdev(values) for values in group.curve.values()]
            low, high = (
                [m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1)
            )
            axes.fill_between(steps, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.set(xlabel=_step(groups), ylabel="test accuracy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(frameon=False, fontsize=style.TICK, labelcolor=style.INK)
    return figure


def _label(group: Group) -> str:
    count = len(group.runs)
    return group.name if count == 1 else f"{group.name} ({count} seeds)"


def _step(groups: Sequence[Group]) -> str:
    """The label of the curves' x-axis."""
    steps = sorted({run.step for group in groups for run in group.runs}, reverse=True)
    return " or ".join(STEPS[step] for step in steps)


def _common_target(runs: Sequence[RunRecord]) -> str | None:
    """The highest target accuracy that all of these runs reached; else that any reached."""
    reached = [set((run.result or {}).get("rounds_to", {})) for run in runs]
    common = set.intersection(*reached) if reached else set()
    return max(common or set().union(*reached), key=float, default=None)


def _overhead(group: Group) -> float | None:
    """Seconds of overhead in a round, on average; None for runs of one round."""
    rounds = [played for run in group.runs for played in run.rounds]
    return fmean(r.seconds.get("overhead", 0.0) for r in rounds) if rounds else None


def _warning(groups: Sequence[Group]) -> str | None:
    """Why the groups may not be comparable. Each seed of a group has a partition of its own."""
    if len({group.result.get("dataset") for group in groups}) > 1:
        return "The runs are on different data sets."
    partitions = {
        frozenset(((run.result or {}).get("partition") or {}).get("hash") for run in group.runs)
        for group in groups
    }
    return "The runs are on different partitions." if len(partitions) > 1 else None
