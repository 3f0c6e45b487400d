"""A cell of a table: which runs one number is the mean of."""

from dataclasses import dataclass
from typing import Literal

from cluster.studies.published import Published

Scale = Literal["small", "paper"]


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
