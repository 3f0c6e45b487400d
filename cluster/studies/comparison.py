"""Our figures beside the paper's: means, spreads, differences, and tests of their significance."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import yaml
from scipy.stats import ttest_rel

from fl.events import Epoch
from fl.json_files import JsonObject, SettingValues
from fl.report.read import METRICS, client_ends, read_events
from fl.report.words import apart

# A cell of a table, and the papers' printed figures beside it (``published.yaml``).

Scale = Literal["small", "paper"]


@dataclass(frozen=True)
class Published:
    """A figure as printed, in percent."""

    mean: float
    spread: float | None = None
    """None where none is printed."""

    def __str__(self) -> str:
        """With the spread, if there is one."""
        return f"{self.mean:.2f}" + (f" ± {self.spread:.2f}" if self.spread is not None else "")


@dataclass(frozen=True)
class PublishedRow:
    """A row of a table: settings by their names on the command line, and a figure per method."""

    dataset: str
    settings: Mapping[str, str]
    figures: Mapping[str, Published | None]
    """None where the paper prints no number."""

    @property
    def name(self) -> str:
        """Data set and settings in one word."""
        return "-".join([self.dataset, *(f"{n}{v}" for n, v in self.settings.items())])


@dataclass(frozen=True)
class Cell:
    """One number of a table: a method under some settings, once per seed."""

    row: str
    method: str
    arguments: tuple[str, ...]
    """For the launch command, without seed and directories."""
    paper: Published | None = None
    settings: tuple[tuple[str, str], ...] = ()
    """The settings that distinguish the row, by the launch command's names."""

    @property
    def name(self) -> str:
        """The name that ``--only`` selects it by, and the beginning of its runs' names."""
        return f"{self.row}-{self.method}"

    @property
    def registered(self) -> str:
        """Name of the registered method; ``method`` may be it with other settings."""
        return next(a for a in self.arguments if a.startswith("--method=")).partition("=")[2]


@cache
def published() -> Mapping[str, Any]:
    """The printed figures, by table."""
    found: Mapping[str, Any] = yaml.safe_load(
        Path(__file__).with_name("published.yaml").read_text()
    )
    return found


def rows(table: str) -> list[PublishedRow]:
    """The published table's rows, in order."""
    (names, methods), *lines = (
        [part.split() for part in line.split(":")] for line in published()[table].splitlines()
    )
    return [
        PublishedRow(
            dataset,
            dict(zip(names[1:], values, strict=True)),
            {
                method: None if figure == "-" else Published(*map(float, figure.split("±")))
                for method, figure in zip(methods, figures, strict=True)
            },
        )
        for (dataset, *values), figures in lines
    ]


# Whether a training has converged: by the loss of the server's fit, by accuracy over rounds, by the
# losses of clients' own trainings.

STILL_FALLING = 0.1
"""Share of the whole fall of the loss above which its last fifth's makes a run undertrained."""
HARDLY = 0.2
"""Share of its first value by which a client's loss must fall at least."""
ENOUGH = 0.05
"""A loss below which a client has learned its samples, whatever its course."""
PARTS = 5


def loss_curve(run_dir: Path) -> tuple[float, ...]:
    """Losses of the run's last fit at the server, by round and epoch, of ``metrics.jsonl``.

    Of epochs that were not tested nothing is known, and nothing at all without a fit.
    """
    events = read_events(run_dir / "metrics.jsonl")
    epochs = [event for event in events if isinstance(event, Epoch)]
    # Epochs that a run trained again after it was killed are there twice; the last one counts.
    found = {(e.round, e.epoch): e.loss for e in epochs if e.stage == epochs[-1].stage}
    return tuple(found[key] for key in sorted(found))


def late_share(losses: Sequence[float]) -> float | None:
    """The fall of the loss in the last fifth of its curve over the fall in all of it.

    Both are between means of fifths, which single epochs' noise does not decide: a loss that falls
    evenly gives a quarter. None for fewer than five epochs, and where the loss did not fall.

    >>> late_share([5, 4, 3, 2, 1]), late_share([5, 1, 1, 1, 1]), late_share([1, 2])
    (0.25, 0.0, None)
    """
    if len(losses) < PARTS:
        return None
    cuts = [len(losses) * part // PARTS for part in range(PARTS + 1)]
    means = [mean(losses[a:b]) for a, b in pairwise(cuts)]
    whole = means[0] - means[-1]
    return (means[-2] - means[-1]) / whole if whole > 0 else None


def still_falling(curves: Sequence[Sequence[float]]) -> bool:
    """Whether the losses of a cell's runs, on the mean of those with any, were still falling."""
    shares = [share for share in map(late_share, curves) if share is not None]
    return bool(shares) and mean(shares) > STILL_FALLING


def rising(curves: Sequence[Sequence[float]]) -> bool:
    """Whether the accuracies after each round of a cell's runs, on their mean, still rose."""
    return still_falling([[-accuracy for accuracy in curve] for curve in curves])


def client_curves(run_dir: Path) -> dict[int, Sequence[float]]:
    """The losses of each client's first training, by epoch, of ``metrics.jsonl``; without clients
    that have none."""
    first = {k: ends[0] for k, ends in client_ends(read_events(run_dir / "metrics.jsonl")).items()}
    return {k: end.losses for k, end in first.items() if end.round == 1 and end.losses}


def untrained_clients(runs: Sequence[Mapping[int, Sequence[float]]]) -> bool:
    """Whether half of the clients or more have not learned their own samples."""
    untrained = [
        _untrained(losses) for run in runs for losses in run.values() if len(losses) >= PARTS
    ]
    return bool(untrained) and 2 * sum(untrained) >= len(untrained)


def _untrained(losses: Sequence[float]) -> bool:
    if losses[-1] <= ENOUGH:
        return False
    hardly = losses[0] - losses[-1] < HARDLY * losses[0]
    share = late_share(losses)
    return hardly or (share is not None and share > STILL_FALLING)


# A table of cells: their ranks, and what is remarked of them.

LEVEL = 0.05
"""p-value above which two methods count as not separated."""
NOTHING = "-"
"""In place of a number that the paper does not print."""
UNDERTRAINED = "undertrained"
"""In place of the rank of a cell whose loss was still falling at the end."""
FAILED = "failed"
"""The same, of a cell with a run that ended in a client's failure."""
MARKS = {
    UNDERTRAINED: f"Undertrained: more than {STILL_FALLING:.0%} of the whole fall of the server's "
    "loss came in the last fifth of its epochs; such a row has no rank, it needs more of them.",
    "rising": "Rising: accuracy rose from the fourth fifth of the rounds to the last by more than "
    f"{STILL_FALLING:.0%} of its whole rise.",
    "clients": "Clients: at half of the clients or more the loss of their own training hardly "
    "fell, or still fell at its end.",
    "dropped": "Dropped: the most clients of a run that failed for good; it went on without them.",
}
"""What stands in place of a rank or beside it, and what it means."""
FLOORS = {"local": "training alone", "fedavg": "fedavg"}
"""Methods that others should beat, and what they are called."""
UNLIKE = (
    "Methods are scored on different samples, so they are not ranked: those with clients' own "
    "models by client, the others on one split for all (fedavg has --tested clients too). UA is "
    "the mean over clients and the last ten rounds."
)


@dataclass(frozen=True)
class Figure:
    """A cell and the results of its runs, by seed."""

    cell: Cell
    results: tuple[SettingValues, ...]
    """As ``result.json`` holds them; none where all seeds failed."""
    losses: tuple[tuple[float, ...], ...] = ()
    """Of the server's training, by run and epoch, as far as they are known."""
    failed: tuple[str, ...] = ()
    """Of the seeds that have no result, why."""
    client_losses: tuple[Mapping[int, Sequence[float]], ...] = ()
    """Of each client's first training, by run, id and epoch, as far as they are known."""

    @property
    def unranked(self) -> str:
        """Why it has no rank; nothing if it has one."""
        if self.failed:
            return FAILED
        return UNDERTRAINED if self.undertrained else ""

    @property
    def undertrained(self) -> bool:
        """Whether its loss was still falling when the server's training ended."""
        return still_falling(self.losses)

    @property
    def mark(self) -> str:
        """What beside the rank says that it has not converged, by rounds or at the clients, or is
        without some of these."""
        marks = []
        if rising([r.get("accuracy_curve", ()) for r in self.results if r.get("rounds", 1) > 1]):
            marks.append("rising")
        if untrained_clients(self.client_losses):
            marks.append("clients")
        if lost := max((len(r.get("dropped", ())) for r in self.results), default=0):
            marks.append(f"{lost} dropped")
        return f" ({', '.join(marks)})" if marks else ""

    @property
    def teacher(self) -> str | None:
        """Accuracy of the teacher that the model learned from, where there is one."""
        if not self.results or not all("teacher_accuracy" in r for r in self.results):
            return None
        return shown([100 * result["teacher_accuracy"] for result in self.results])

    @property
    def scored_on(self) -> str:
        """On which samples: test, clients or validation; and whether clients' models are, whose
        figure is UA."""
        if not self.results:
            return NOTHING
        on = str(self.results[0].get("scored_on", "test"))
        by_client = ", by client" if on != "clients" else ""
        return f"{on}{by_client}, UA" if "ua" in self.results[0] else on

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Accuracies from 0 to 1, by seed: the last round's or epoch's; where clients were scored
        on samples of their own, UA, the mean over them and the last ten rounds."""
        return tuple(result.get("ua", result["accuracy"]) for result in self.results)

    @property
    def mean(self) -> float:
        """Mean accuracy in percent."""
        return 100 * mean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Sample standard deviation in points; None for one seed."""
        return spread([100 * accuracy for accuracy in self.accuracies])

    def __str__(self) -> str:
        """Mean and spread."""
        return str(Published(self.mean, self.spread)) if self.results else FAILED


def spread(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for one value."""
    return stdev(values) if len(values) > 1 else None


def shown(values: Sequence[float]) -> str:
    """Their mean, and their spread if there are several."""
    return str(Published(mean(values), spread(values)))


def as_markdown(
    name: str, scale: str | None, seeds: Sequence[int], figures: Sequence[Figure]
) -> str:
    """A table with a line per cell, ranks within each row, and remarks below; the paper's columns
    where it prints numbers."""
    there = [figure for figure in figures if figure.results]
    alike = len({figure.scored_on for figure in there}) == 1
    printed = any(figure.cell.paper for figure in figures)
    taught = any(figure.teacher for figure in figures)
    metric = f"{metric_name(there)}, %"
    if alike and "ua" in there[0].results[0]:
        metric = "UA, %" if metric == "Accuracy, %" else f"UA of {metric}"
    lines = []
    for row in _by_row(figures):
        ours = _ranks([None if figure.unranked else figure.mean for figure in row])
        theirs = _ranks([f.cell.paper.mean if f.cell.paper else None for f in row])
        for figure, own, of_paper in zip(row, ours, theirs, strict=True):
            cells = {"Row": figure.cell.row, "Method": figure.cell.method, metric: str(figure)}
            paper = figure.cell.paper
            if paper and figure.results:
                cells |= {"Paper": str(paper), "Difference": f"{figure.mean - paper.mean:+.2f}"}
            elif printed:
                cells |= {"Paper": str(paper or NOTHING), "Difference": NOTHING}
            if taught:
                cells["Its teacher"] = figure.teacher or NOTHING
            rank = {"Rank": (figure.unranked or own) + figure.mark}
            rank |= {"Rank in the paper": of_paper} if printed else {}
            if not alike:
                scored = ", ".join(filter(None, [figure.scored_on, figure.unranked]))
                rank = {"Scored on": scored + figure.mark}
            elif "validation" in figure.scored_on:
                rank = {"Scored on": figure.scored_on} | rank
            lines.append(cells | rank)
    where = f" at {scale} scale" if scale else ""
    heading = f"# {name}{where}, seeds {', '.join(map(str, seeds))}"
    return "\n".join([heading, "", *table(lines), "", *remarks(figures, alike=alike), ""])


def metric_name(figures: Sequence[Figure]) -> str:
    """What the results' accuracy is; of several metrics a word for each of them."""
    metrics = {str(result.get("metric", "accuracy")) for f in figures for result in f.results}
    names = [METRICS.get(metric, metric) for metric in metrics]
    return names[0] if len(names) == 1 else "Score"


def table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The lines of a table in Markdown, of rows by column; what a row lacks is a dash."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[row.get(name, NOTHING) for name in names] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *lines)]


def as_json(
    name: str, scale: str | None, seeds: Sequence[int], figures: Sequence[Figure]
) -> JsonObject:
    """The same for programs; accuracies in percent."""
    cells = [
        {
            "row": figure.cell.row,
            "method": figure.cell.method,
            "metric": figure.results[0].get("metric") if figure.results else None,
            "scored_on": figure.scored_on,
            "seeds": [result.get("seed") for result in figure.results],
            "accuracies": [100 * a for a in figure.accuracies],
            "failed": list(figure.failed),
            "dropped": [sorted(map(int, r.get("dropped", ()))) for r in figure.results],
            "mean": figure.mean if figure.results else None,
            "spread": figure.spread,
            "paper_mean": figure.cell.paper and figure.cell.paper.mean,
            "paper_spread": figure.cell.paper and figure.cell.paper.spread,
            "protocol": figure.results[0]["protocol"] if figure.results else None,
            "undertrained": figure.undertrained,
        }
        for figure in figures
    ]
    return {"table": name, "scale": scale, "seeds": list(seeds), "cells": cells}


def remarks(figures: Sequence[Figure], *, alike: bool = True) -> list[str]:
    """What failed, is undertrained, or comes of several versions or of a setting that does nothing;
    and which neighbours in rank the seeds do not separate: if all are scored on samples ``alike``,
    else that they are not ranked."""
    marks = "".join(figure.mark for figure in figures)
    marks += UNDERTRAINED if any(figure.undertrained for figure in figures) else ""
    versions = apart(result.get("versions", {}) for f in figures for result in f.results)
    parts = [
        [f"Failed: {f.cell.name}, {why}" for f in figures for why in f.failed],
        [f"The runs are of different versions: {versions}."] if versions else [],
        _equal(figures),
        *([meaning] for mark, meaning in MARKS.items() if mark in marks),
        _below_floors([figure for figure in figures if figure.results]) if alike else [],
    ]
    told = [line for part in parts if part for line in (*part, "")]
    return [*told, *(_not_separated(figures) if alike else [UNLIKE])]


def _equal(figures: Sequence[Figure]) -> list[str]:
    """Which cells' runs are equal in all figures, as where a row's setting does nothing."""
    names = ("accuracy", "accuracy_curve", "per_class_accuracy", "client_accuracy", "bytes_up")
    found: dict[str, list[str]] = {}
    for figure in figures:
        if figure.results and all("accuracy_curve" in result for result in figure.results):
            of_all = [[result.get(name) for name in names] for result in figure.results]
            found.setdefault(json.dumps(of_all), []).append(figure.cell.name)
    return [
        f"Equal to the digit: {', '.join(cells)}. What distinguishes them may have no effect."
        for cells in found.values()
        if len(cells) > 1
    ]


def _below_floors(figures: Sequence[Figure]) -> list[str]:
    """Which methods are below training alone, or FedAvg, in the mean."""
    found = []
    for row in _by_row(figures):
        for floor in (figure for figure in row if figure.cell.method in FLOORS):
            below = [f for f in row if f.mean < floor.mean and f.cell.method not in FLOORS]
            if listed := ", ".join(f"{f.cell.method} by {floor.mean - f.mean:.1f}" for f in below):
                found.append(f"- {floor.cell.row}: below {FLOORS[floor.cell.method]}: {listed}")
    return found


def _not_separated(figures: Sequence[Figure]) -> list[str]:
    """A paired t-test over seeds, since methods of one seed share partition and uploads."""
    if any(len(figure.accuracies) + len(figure.failed) < 2 for figure in figures):
        return ["One seed: no spread, and no ranking can be relied on."]
    found = []
    rows = [
        sorted((f for f in r if not f.unranked), key=lambda f: -f.mean) for r in _by_row(figures)
    ]
    if all(len(ranked) < 2 for ranked in rows):
        return []
    for ranked in rows:
        for better, worse in pairwise(ranked):
            p = _p_value(better.accuracies, worse.accuracies)
            if p > LEVEL:
                found.append(
                    f"- {better.cell.row}: {len(better.accuracies)} seeds do not separate "
                    f"{better.cell.method} from {worse.cell.method} (paired t-test, p = {p:.2f})"
                )
    return found or ["The seeds separate all neighbours in every row (paired t-test, 5 %)."]


def _p_value(one: Sequence[float], other: Sequence[float]) -> float:
    differences = [a - b for a, b in zip(one, other, strict=True)]
    if len(set(differences)) == 1:  # no variance: the test is not defined
        return 0.0 if differences[0] else 1.0
    return float(ttest_rel(one, other).pvalue)


def _by_row(figures: Sequence[Figure]) -> list[list[Figure]]:
    rows: dict[str, list[Figure]] = {}
    for figure in figures:
        rows.setdefault(figure.cell.row, []).append(figure)
    return list(rows.values())


def _ranks(values: Sequence[float | None]) -> list[str]:
    """1 for the largest; equal values share a rank; a missing value has none, nor has one alone."""
    if len(values) == 1:
        return [NOTHING]
    there = [value for value in values if value is not None]
    return [NOTHING if v is None else str(1 + sum(other > v for other in there)) for v in values]
