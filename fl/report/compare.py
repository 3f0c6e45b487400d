"""Several runs on one page: their figures side by side, their accuracy curves in one picture.

Runs that differ by their seed alone share a row and a curve: mean and standard deviation.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fl.errors import UserError
from fl.json_files import JsonObject
from fl.report import style, words
from fl.report.page import write
from fl.report.plots import STEPS
from fl.report.read import RunRecord, read_run
from fl.report.template import HERE, render

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1f2933", "#7b8794")
"""The runs' colours in order; from the ninth run on they repeat, with dashes."""


NO_SETTINGS = ("seed", "versions")
"""What config.yaml holds beside that which runs of one group share."""


@dataclass(frozen=True)
class Group:
    """Finished runs of one configuration, each with a seed of its own; often one run alone."""

    runs: list[RunRecord]

    @property
    def name(self) -> str:
        """The run's name; of several what their names share but for the seed."""
        names = [run.path.resolve().name for run in self.runs]
        without = {
            name.removesuffix(f"-seed{run.config.get('seed')}")
            for name, run in zip(names, self.runs, strict=True)
        }
        if len(names) == 1:
            return names[0]
        return without.pop() if len(without) == 1 else f"{names[0]} and {len(names) - 1} more"

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs, in their order."""
        return [run.config.get("seed", 0) for run in self.runs]

    @property
    def result(self) -> JsonObject:
        """The first run's, for what all runs of the group share."""
        return self.runs[0].result or {}

    def mean(self, *path: str) -> float | None:
        """Mean over the seeds of the figure at this path of result.json; None if one lacks it."""
        values = self._values(path)
        return fmean(values) if values else None

    def spread(self, *path: str) -> float | None:
        """Standard deviation over the seeds (n - 1); None for one run, or where one lacks it."""
        values = self._values(path)
        return stdev(values) if len(values) > 1 else None

    @property
    def curve(self) -> dict[int, list[float]]:
        """By round or epoch every seed's accuracy, where all have one; 0 is the start."""
        curves = []
        for run in self.runs:
            start = (run.result or {}).get("start_accuracy")
            curves.append(run.accuracy if start is None else {0: start, **run.accuracy})
        shared = set.intersection(*(set(curve) for curve in curves))
        return {step: [curve[step] for curve in curves] for step in sorted(shared)}

    def _values(self, path: Sequence[str]) -> list[float]:
        found = []
        for run in self.runs:
            value: object = run.result
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            if not isinstance(value, int | float):
                return []
            found.append(float(value))
        return found


def groups_of(runs: Sequence[RunRecord]) -> list[Group]:
    """The runs' groups, in the order of their first runs.

    A second run of a seed belongs to another group, as it would count its seed twice.
    """
    groups: list[tuple[str, Group]] = []
    for run in runs:
        settings = {name: value for name, value in run.config.items() if name not in NO_SETTINGS}
        key = json.dumps(settings, sort_keys=True, default=str)
        seed = run.config.get("seed", 0)
        fitting = [group for other, group in groups if other == key and seed not in group.seeds]
        if fitting:
            fitting[0].runs.append(run)
        else:
            groups.append((key, Group([run])))
    return [group for _, group in groups]


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


def _warning(groups: Sequence[Group]) -> str | None:
    """Why the groups may not be comparable. Each seed of a group has a partition of its own."""
    if len({group.result.get("dataset") for group in groups}) > 1:
        return "The runs are on different data sets."
    partitions = {
        frozenset(((run.result or {}).get("partition") or {}).get("hash") for run in group.runs)
        for group in groups
    }
    return "The runs are on different partitions." if len(partitions) > 1 else None
