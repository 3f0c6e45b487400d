"""The paper's tables as cells: which runs each figure is the mean of."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

from cluster import published
from cluster.published import Published, Row

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


def _table(text: str, *extra: str) -> Callable[[Scale], list[Cell]]:
    def cells(scale: Scale) -> list[Cell]:
        return [
            Cell(row.name, method, (*_arguments(scale, row, method), *extra), figure)
            for row in published.rows(text)
            for method, figure in row.figures.items()
        ]

    return cells


def _arguments(scale: Scale, row: Row, method: str) -> tuple[str, ...]:
    preset = "mnist-small" if scale == "small" else f"paper-{row.dataset}"
    settings = [
        argument
        for name, value in row.settings.items()
        for argument in (f"--{name}", *value.split(","))
    ]
    return f"--preset={preset}", f"--dataset={row.dataset}", f"--method={method}", *settings


TABLES = {
    "table3": _table(published.TABLE_3),
    "table4": _table(published.TABLE_4, "--filter=none"),
    "table5": _table(published.TABLE_5, "--alpha=0.5"),
    "table6": _table(published.TABLE_6),
    "table8": _table(published.TABLE_8, "--num-large=10"),
    "loss-weights": _table(published.LOSS_WEIGHTS),
}
