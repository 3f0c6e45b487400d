"""Runs every combination of methods, settings and seeds from Python, as one table."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from cluster.run.command_line import as_arguments, flatten, parse
from cluster.studies import suite_runs
from cluster.studies.comparison import Cell
from cluster.studies.grids import picture_over
from cluster.studies.suite_runs import figure_of
from fl.config import RunConfig
from fl.errors import UserError
from onefold.result import Result
from onefold.running import OBJECTS, run

GIVEN = (*OBJECTS, "loss", "augment", "metrics", "callbacks")
"""Arguments of :func:`onefold.run` that are objects."""


@dataclass(frozen=True)
class Table:
    """A grid that has been run."""

    results: Mapping[tuple[str, str], Sequence[Result]]
    """By row (the settings) and method, one for each seed."""
    text: str
    """The table in Markdown: means and standard deviations over seeds."""
    picture: Path

    def __repr__(self) -> str:
        """The table, and where the picture is."""
        return f"{self.text}\npicture: {self.picture}"


def grid(
    axes: Mapping[str, Sequence[Any]],
    data: Any = None,
    model: Any = None,
    *,
    name: str = "grid",
    output_dir: Path | str = "runs",
    **settings: Any,
) -> Table:
    """Runs every combination; what clients have trained before is taken from the store.

    Args:
        axes: the values of each setting that is varied, by its name as for :func:`onefold.run`, or
            dotted; ``method`` and ``seed`` too.
        data, model: as for :func:`onefold.run`; ``axes`` may have several models.
        name: of the table; the runs' names begin with it.
        output_dir: the folder of the runs and the table.
        settings: further ones of :func:`onefold.run`, the same in all runs.

    Returns:
        The table, which is saved too, with a picture of accuracy over the first setting.

    Raises:
        UserError: one line, for whatever is wrong.
    """
    listed, default = _listed(axes), _in_files(settings)
    seeds = listed.pop("seed", [settings.pop("seed", default.seed)])
    methods = listed.pop("method", [settings.pop("method", default.method)])
    found: dict[tuple[str, str], list[Result]] = {}
    cells: dict[tuple[str, str], Cell] = {}
    for values in product(*listed.values()):
        own = dict(zip(listed, values, strict=True))
        shown = tuple((axis, _shown(value)) for axis, value in own.items())
        row = "-".join(f"{axis}{value}" for axis, value in shown) or "data"
        for method, seed in product(methods, seeds):
            title = f"{name}-{row}-{_shown(method)}-seed{seed}"
            given = {"data": data, "model": model, "method": method} | _flat(settings) | _flat(own)
            given |= {"name": re.sub(r"[^\w.+-]", "_", title), "output_dir": output_dir}
            result = run(**given, seed=seed, overwrite=True)
            key = row, str(result.figures["method"])
            cells.setdefault(key, Cell(*key, arguments=(), settings=shown))
            found.setdefault(key, []).append(result)
    figures = [
        figure_of(cells[key], [(r.figures, r.path) for r in results])
        for key, results in found.items()
    ]
    exhibit = picture_over({axis: tuple(map(_shown, own)) for axis, own in listed.items()}, name)
    written, folder = suite_runs.Table(name, None, seeds, figures, exhibit), Path(output_dir)
    written.write(folder)
    return Table(found, written.text(), folder / f"{name}.png")


def _in_files(settings: Mapping[str, Any]) -> RunConfig[Any]:
    """The run that a preset and a configuration describe, by defaults what they leave out."""
    files = [name for name in ("preset", "config") if name in settings]
    arguments = [a for name in files for a in as_arguments(name, settings[name])]
    return parse(arguments, prog="onefold.grid").run


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted name, so that a mapping of an axis leaves the others of its group; objects
    as they are."""
    objects = {name: value for name, value in settings.items() if name in GIVEN}
    return objects | flatten({n: v for n, v in settings.items() if n not in objects})


def _listed(axes: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The axes' values; a row is known by their names alone.

    Raises:
        UserError: an axis has no values, or two of the same name.
    """
    listed = {axis: list(values) for axis, values in axes.items()}
    for axis, values in listed.items():
        if not values:
            raise UserError(f"grid: {axis} has no values")
        if like := [name for name, n in Counter(map(_shown, values)).items() if n > 1]:
            raise UserError(
                f"grid: {axis} has several values named {like[0]!r}; give each a name of its own"
            )
    return listed


def _shown(value: Any) -> str:
    """A value in a name: an object by its own."""
    return str(getattr(value, "__name__", getattr(value, "name", value)))
