"""Our figures beside the paper's: means, spreads, differences, and what the seeds cannot tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, stdev
from typing import Any

from scipy.stats import ttest_rel

from cluster.cells import Cell

LEVEL = 0.05
"""p-value above which two methods are not told apart."""


@dataclass(frozen=True)
class Figure:
    """A cell and its accuracies, 0 to 1, by seed."""

    cell: Cell
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """In percent."""
        return 100 * mean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Sample standard deviation in points; None for one seed."""
        return 100 * stdev(self.accuracies) if len(self.accuracies) > 1 else None


def as_markdown(name: str, scale: str, seeds: Sequence[int], figures: Sequence[Figure]) -> str:
    """A table with a line per cell, ranks within each row, and remarks below."""
    lines = [
        f"# {name} at {scale} scale, seeds {', '.join(map(str, seeds))}",
        "",
        "| Row | Method | Accuracy, % | Paper | Difference | Rank | Rank in the paper |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in _by_row(figures):
        ours = _ranks([figure.mean for figure in row])
        theirs = _ranks([figure.cell.paper.mean for figure in row])
        lines += [
            f"| {figure.cell.row} | {figure.cell.method} | {_shown(figure)} "
            f"| {figure.cell.paper.mean:.2f} ± {figure.cell.paper.spread:.2f} "
            f"| {figure.mean - figure.cell.paper.mean:+.2f} | {own} | {paper} |"
            for figure, own, paper in zip(row, ours, theirs, strict=True)
        ]
    return "\n".join([*lines, "", *remarks(figures), ""])


def as_json(
    name: str, scale: str, seeds: Sequence[int], figures: Sequence[Figure]
) -> dict[str, Any]:
    """The same for programs; accuracies in percent."""
    cells = [
        {
            "row": figure.cell.row,
            "method": figure.cell.method,
            "accuracies": [100 * a for a in figure.accuracies],
            "mean": figure.mean,
            "spread": figure.spread,
            "paper_mean": figure.cell.paper.mean,
            "paper_spread": figure.cell.paper.spread,
        }
        for figure in figures
    ]
    return {"table": name, "scale": scale, "seeds": list(seeds), "cells": cells}


def remarks(figures: Sequence[Figure]) -> list[str]:
    """Which neighbours in the ranking the seeds do not separate: a paired t-test over seeds.

    Paired, since methods of one seed share partition and uploads.
    """
    if any(len(figure.accuracies) < 2 for figure in figures):
        return ["One seed: no spread, and no ranking can be relied on."]
    found = []
    for row in _by_row(figures):
        ranked = sorted(row, key=lambda figure: -figure.mean)
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


def _ranks(values: Sequence[float]) -> list[int]:
    """1 for the largest; equal values share a rank."""
    return [1 + sum(other > value for other in values) for value in values]


def _shown(figure: Figure) -> str:
    return f"{figure.mean:.2f}" + (f" ± {figure.spread:.2f}" if figure.spread is not None else "")
