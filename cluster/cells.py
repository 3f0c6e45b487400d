"""The paper's tables as cells: which runs each figure is the mean of."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

from cluster import published
from cluster.published import Published

Scale = Literal["small", "paper"]


@dataclass(frozen=True)
class Cell:
    """One figure of a table: a method under some settings, once per seed."""

    row: str
    method: str
    arguments: tuple[str, ...]
    """For the launch command, but for seed and directories."""
    paper: Published

    @property
    def name(self) -> str:
        """What ``--only`` picks it by, and a part of its runs' names."""
        return f"{self.row}-{self.method}"


def make(name: str, scale: Scale, only: tuple[str, ...]) -> list[Cell]:
    """The table's cells; with ``only`` those whose name fits one of the patterns."""
    cells = TABLES[name](scale)
    return [c for c in cells if not only or any(fnmatch(c.name, pattern) for pattern in only)]


def by_alpha(table: str, *extra: str) -> Callable[[Scale], list[Cell]]:
    """A table whose rows are data sets and alphas."""

    def cells(scale: Scale) -> list[Cell]:
        return [
            Cell(
                f"{dataset}-alpha{alpha}",
                method,
                (*_settings(scale, dataset, method), f"--alpha={alpha}", *extra),
                figure,
            )
            for (dataset, alpha), figures in published.rows(table).items()
            for method, figure in figures.items()
        ]

    return cells


def by_clients(table: str) -> Callable[[Scale], list[Cell]]:
    """A table whose rows are numbers of clients, at alpha 0.5."""

    def cells(scale: Scale) -> list[Cell]:
        return [
            Cell(
                f"{dataset}-k{clients}",
                method,
                (*_settings(scale, dataset, method), "--alpha=0.5", f"--num-clients={clients}"),
                figure,
            )
            for (dataset, clients), figures in published.rows(table).items()
            for method, figure in figures.items()
        ]

    return cells


def _settings(scale: Scale, dataset: str, method: str) -> tuple[str, ...]:
    preset = "mnist-small" if scale == "small" else f"paper-{dataset}"
    return f"--preset={preset}", f"--dataset={dataset}", f"--method={method}"


TABLES = {
    "table3": by_alpha(published.TABLE_3),
    "table4": by_alpha(published.TABLE_4, "--filter=none"),
    "table5": by_clients(published.TABLE_5),
    "table8": by_alpha(published.TABLE_8, "--num-large=10"),
}
