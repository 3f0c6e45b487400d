"""A cell of a table, and the papers' printed figures beside it (``published.yaml``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

Scale = Literal["small", "paper"]


@dataclass(frozen=True)
class Published:
    """A figure as printed, in percent."""

    mean: float
    spread: float | None = None
    """None where none is printed."""


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
