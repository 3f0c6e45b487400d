"""Several runs on one page: their figures side by side, their accuracy curves in one picture."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fl.errors import UserError
from fl.report import style, words
from fl.report.page import write
from fl.report.plots import STEPS
from fl.report.read import RunRecord, read_run
from fl.report.template import HERE, render

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1f2933", "#7b8794")
"""The runs' colours in order; from the ninth run on they repeat, with dashes."""


def write_comparison(run_dirs: Sequence[Path], page: Path) -> Path:
    """Writes the page, the best run first; returns its path.

    Raises:
        UserError: a directory is no run, or holds one that is not finished.
    """
    runs = [read_run(run_dir) for run_dir in run_dirs]
    for run in runs:
        if run.result is None:
            raise UserError(f"{run.path} is not finished: it has no result.json to compare")
    runs.sort(key=lambda run: -_result(run)["accuracy"])
    filters = {
        "percent": words.percent,
        "points": words.points,
        "duration": words.duration,
        "size": words.size,
        "base64": style.base64,
    }
    curves = [run for run in runs if run.accuracy]
    in_rounds = [run for run in runs if run.rounds]
    content = render(
        HERE / "compare.html.j2",
        filters,
        runs=[(name(run), _result(run)) for run in runs],
        warning=_warning(runs),
        target=_common_target(in_rounds),
        overheads={name(run): _overhead(run) for run in in_rounds},
        step=_step(curves),
        picture=style.png(accuracy_curves(curves)) if curves else None,
        width=round(100 * style.WIDE),
    )
    write(page, content.encode())
    return page


def name(run: RunRecord) -> str:
    """The run's name on the page."""
    return run.path.resolve().name


def accuracy_curves(runs: Sequence[RunRecord]) -> Figure:
    """Accuracy after each round or epoch of fusion, a line per run; 0 is its start."""
    figure, axes = style.new_axes(style.WIDE, 4.2)
    for number, run in enumerate(runs):
        start = _result(run).get("start_accuracy")
        curve = run.accuracy if start is None else {0: start, **run.accuracy}
        axes.plot(
            list(curve),
            list(curve.values()),
            color=COLOURS[number % len(COLOURS)],
            linestyle="-" if number < len(COLOURS) else "--",
            linewidth=2,
            label=name(run).replace("$", r"\$"),  # a name is no formula
        )
    axes.set(xlabel=_step(runs), ylabel="test accuracy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(frameon=False, fontsize=style.TICK, labelcolor=style.INK)
    return figure


def _step(runs: Sequence[RunRecord]) -> str:
    """The label of the curves' x-axis."""
    steps = sorted({run.step for run in runs}, reverse=True)
    return " or ".join(STEPS[step] for step in steps)


def _common_target(runs: Sequence[RunRecord]) -> float | None:
    """The highest target accuracy that all of these runs reached; else that any reached."""
    reached = [set(_result(run).get("rounds_to", {})) for run in runs]
    common = set.intersection(*reached) if reached else set()
    return max(map(float, common or set().union(*reached)), default=None)


def _overhead(run: RunRecord) -> float:
    """Seconds of overhead in a round, on average."""
    return sum(r.seconds.get("overhead", 0.0) for r in run.rounds) / len(run.rounds)


def _warning(runs: Sequence[RunRecord]) -> str | None:
    """Why the runs may not be comparable."""
    partitions = {(_result(run).get("partition") or {}).get("hash") for run in runs}
    if len({_result(run).get("dataset") for run in runs}) > 1:
        return "The runs are on different data sets."
    return "The runs are on different partitions." if len(partitions) > 1 else None


def _result(run: RunRecord) -> dict:
    return run.result or {}
