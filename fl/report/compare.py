"""Several runs on one page: their figures side by side, their accuracy curves in one picture.

Runs that differ by their seed alone share a row and a curve: mean and standard deviation.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from matplotlib.figure import Figure

from fl.errors import UserError
from fl.json_files import flatten
from fl.report import style
from fl.report.course import STEPS
from fl.report.page import write_page
from fl.report.read import RunRecord, read_run
from fl.report.words import NONE, REUSED, apart, duration, percent, points, size, within_a_line

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1f2933", "#7b8794")
"""The curves' colours in order; from the ninth on they repeat, with dashes."""
NOT_SHARED = ("seed", "versions", "call")
"""What may differ in config.yaml between the runs of a group."""
ALONE = "local"
"""The method in which clients exchange nothing."""
Group = list[RunRecord]
"""Finished runs of one configuration, each with a seed of its own; often a single run."""


def write_comparison(run_dirs: Sequence[Path], page: Path) -> Path:
    """Writes the page, the best configuration first; returns its path.

    Raises:
        UserError: a directory is no run, or holds one that is not finished.
    """
    runs = [read_run(run_dir) for run_dir in run_dirs]
    for run in runs:
        if not run.result:
            raise UserError(f"{run.path} is not finished: it has no result.json to compare")
    groups = sorted(groups_of(runs), key=lambda group: -_mean(group, "accuracy"))
    curves = [group for group in groups if all(run.accuracy for run in group)]
    with style.own_defaults():
        picture = style.svg(accuracy_curves(curves)) if curves else None
    write_page(
        page,
        "compare.html.j2",
        count=len(runs),
        rows=[_row(group, groups) for group in groups],
        reused=REUSED if any(run.reused for run in runs) else None,
        settings=_differing(groups),
        warning=_warning(groups),
        step=_step(curves),
        metric=_metric(groups),
        picture=picture,
        width=round(100 * style.WIDE),
    )
    return page


def groups_of(runs: Sequence[RunRecord]) -> list[Group]:
    """The runs' groups, in the order of their first runs.

    A second run of a seed belongs to another group, as it would count its seed twice.
    """
    groups: dict[tuple[str, int], Group] = {}
    seen = Counter[tuple[str, int]]()
    for run in runs:
        settings = {name: value for name, value in run.config.items() if name not in NOT_SHARED}
        key = json.dumps(settings, sort_keys=True, default=str)
        groups.setdefault((key, seen[key, _seed(run)]), []).append(run)
        seen[key, _seed(run)] += 1
    return [*groups.values()]


def _seed(run: RunRecord) -> int:
    return int(run.config.get("seed", 0))


def _name(group: Group) -> str:
    """The run's name; of several the first one's without its seed."""
    first = group[0]
    return first.name.removesuffix(f"-seed{_seed(first)}") if len(group) > 1 else first.name


def _mean(group: Group, figure: str) -> float:
    return fmean(run.result[figure] for run in group)


def _metric(groups: Sequence[Group]) -> str:
    """What all runs' accuracy is; of several metrics a word for each of them."""
    names = {run.metric_name for group in groups for run in group}
    return names.pop() if len(names) == 1 else "Score"


def _row(group: Group, groups: Sequence[Group]) -> dict[str, str]:
    """A group's line in the table, by the columns' names."""
    first, accuracy = group[0].result, _mean(group, "accuracy")
    start = _mean(group, "start_accuracy")
    spread = stdev(run.result["accuracy"] for run in group) if len(group) > 1 else None
    target = _target([run for other in groups for run in other])
    reached = [(run.result.get("rounds_to") or {}).get(target, 0) for run in group]
    below = _below_alone(group, groups)
    dropped = max(len(run.result.get("dropped") or ()) for run in group)
    seconds = duration(fmean(run.result["seconds"]["total"] for run in group))
    return {
        "Run": _name(group),
        "Method": first["method"],
        "Data": first["dataset"],
        "Alpha": NONE if first["alpha"] is None else str(first["alpha"]),
        "Seeds": ", ".join(str(_seed(run)) for run in group),
        _metric(groups): percent(accuracy) + ("" if spread is None else f" ± {100 * spread:.1f}"),
        "Start": percent(start),
        "Gain": points(accuracy - start),
        "Below alone": NONE if below is None else str(below),
        "Dropped": str(dropped or NONE),
        "Sent up": size(_mean(group, "bytes_up")),
        "Time": seconds + (REUSED if any(run.reused for run in group) else ""),
        "Protocol": first["protocol"],
        "Scored on": first.get("scored_on", "test").replace("test", NONE),
        f"Rounds to {percent(float(target))}": f"{fmean(reached):.4g}" if all(reached) else NONE,
    }


def _differing(groups: Sequence[Group]) -> list[dict[str, str]]:
    """A line per group with its settings that another group has otherwise; none if all agree.

    A setting that one method alone has comes with the method, and is left out.
    """
    found = []
    for group in groups:
        shared = {name: v for name, v in group[0].config.items() if name not in NOT_SHARED}
        own = flatten({**shared, "seed": [_seed(run) for run in group]})
        found.append({name: _shown(value) for name, value in own.items()})
    names = dict.fromkeys(name for settings in found for name in settings)
    differ = [n for n in names if len({own[n] for own in found if n in own}) > 1]
    return [
        {"Run": _name(group), **{name: own.get(name, NONE) for name in differ}}
        for group, own in zip(groups, found, strict=True)
        if differ
    ]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return "none" if value is None else str(value)


def _target(runs: Sequence[RunRecord]) -> str:
    """The highest target accuracy that all runs of many rounds reached, or else any of them."""
    reached = [set(run.result.get("rounds_to", {})) for run in runs if run.rounds]
    common = set.intersection(*reached) if reached else set()
    return max(common or set().union(*reached), key=float, default="0")


def _below_alone(group: Group, groups: Sequence[Group]) -> int | None:
    """Clients with a lower accuracy than alone, in a run among these of the same partition."""
    alone: dict[object, list[Mapping[int, float]]] = {}
    for run in chain.from_iterable(groups):
        if run.config["method"] == ALONE and run.scores:
            alone.setdefault(_samples(run), []).append(run.scores)
    # Of several runs alone on the same samples none is the one to compare with.
    pairs = [(r.scores, alone.get(_samples(r), [])) for r in group if r.config["method"] != ALONE]
    if not pairs or not all(ours and len(theirs) == 1 for ours, theirs in pairs):
        return None
    return sum(a < theirs.get(k, 0.0) for ours, (theirs,) in pairs for k, a in ours.items())


def _samples(run: RunRecord) -> tuple[object, ...]:
    """What the run's clients hold, and are scored on: the data set, who has which samples of it."""
    return *_data(run), (run.result.get("partition") or {}).get("hash"), *_tests(run)


def _data(run: RunRecord) -> tuple[object, ...]:
    """The data set, by its content if it is the user's."""
    own = run.config.get("own")
    digests = own if isinstance(own, dict) else {}
    return run.result.get("dataset"), digests.get("dataset"), digests.get("data.folder")


def _tests(run: RunRecord) -> tuple[object, ...]:
    """Which samples the run is scored on, and how many were asked for."""
    on, limits = run.result.get("scored_on", "test"), run.config.get("data") or {}
    return on, limits.get("validation") or 0, on == "test" and limits.get("max_test")


def accuracy_curves(groups: Sequence[Group]) -> Figure:
    """Accuracy after each round or epoch of fusion, a line per group; 0 is its start.

    Of several seeds the line is the mean, in a band of one standard deviation to either side.
    """
    figure, axes = style.new_axes(style.WIDE, 4.2)
    for number, group in enumerate(groups):
        curves = [run.curve for run in group]
        steps = sorted(set.intersection(*map(set, curves)))  # that all seeds have
        values = np.array([[curve[step] for step in steps] for curve in curves])
        means = values.mean(axis=0)
        label = f"{_name(group)} ({len(group)} seeds)" if len(group) > 1 else _name(group)
        (line,) = axes.plot(steps, means, color=COLOURS[number % len(COLOURS)], linewidth=2)
        line.set(linestyle="-" if number < len(COLOURS) else "--")
        line.set_label(label.replace("$", r"\$"))  # a name is no formula
        if len(group) > 1:
            spread = values.std(axis=0, ddof=1)
            band = axes.fill_between(steps, means - spread, means + spread, color=line.get_color())
            band.set(alpha=0.16, linewidth=0)
    style.accuracy_axis(axes, within_a_line(_metric(groups)))
    style.count_axis(axes, _step(groups))
    style.legend(axes)
    return figure


def _step(groups: Sequence[Group]) -> str:
    """The label of the curves' x-axis."""
    steps = sorted({run.step for group in groups for run in group}, reverse=True)
    return " or ".join(STEPS[step] for step in steps)


def _warning(groups: Sequence[Group]) -> str | None:
    """Why the runs may not be comparable. Each seed of a group has a partition of its own."""
    runs, told = [*chain.from_iterable(groups)], []
    if len({_data(run) for run in runs}) > 1:
        told.append("The runs are on different data sets.")
    elif len({("ua" in run.result, *_tests(run)) for run in runs}) > 1:
        told.append("The runs are scored on different samples: by client, held-out ones, or fewer.")
    elif len({frozenset(map(_samples, group)) for group in groups}) > 1:
        told.append("The runs are on different partitions.")
    if versions := apart(run.result.get("versions", {}) for run in runs):
        told.append(f"The runs are of different versions: {versions}.")
    return " ".join(told) or None
