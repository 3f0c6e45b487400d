"""Runs every combination of methods, settings and seeds from Python, as one table."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from cluster.run.command_line import as_arguments, check_run_name, parse
from cluster.run.options import Launch
from cluster.run.run_dir import check_place, locate
from cluster.studies import suite_runs
from cluster.studies.comparison import Cell
from cluster.studies.grids import picture_over
from cluster.studies.suite_runs import earlier, refuse_any, run_each
from fl.config import RunConfig
from fl.data.own import as_dataset
from fl.errors import UserError
from fl.json_files import JsonObject, flatten
from onefold.result import Result, plain_torch
from onefold.running import OBJECTS, OWN, launch_of, refuse_elsewhere, run

NO_SETTINGS = ("loss", "augment", "metrics", "callbacks", "progress")
GIVEN = (*OBJECTS, *NO_SETTINGS[:-1])
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
    overwrite: bool = False,
    **settings: Any,
) -> Table:
    """Runs every combination that is not finished; what clients have trained before is taken from
    the store. A run in which a client fails is reported, and the others go on.

    Args:
        axes: the values of each setting that is varied, by its name as for :func:`onefold.run`, or
            dotted; ``method`` and ``seed`` too.
        data, model: as for :func:`onefold.run`; ``axes`` may have several models.
        name: of the table; the runs' names begin with it.
        output_dir: the folder of the runs and the table.
        overwrite: whether runs of those names are replaced; without, finished ones with the same
            settings are kept, and others refused.
        settings: further ones of :func:`onefold.run`, the same in all runs.

    Returns:
        The table, which is saved too, with a picture of accuracy over the first setting.

    Raises:
        UserError: one line, for whatever is wrong; before anything is run.
        ClientFailed: no run has a result.
    """
    check_run_name(name)
    settings |= {"output_dir": output_dir, "overwrite": overwrite, "resume": not overwrite}
    listed, default = _listed(axes), _in_files(settings)
    seeds = listed.pop("seed", [settings.pop("seed", default.seed)])
    methods = listed.pop("method", [settings.pop("method", default.method)])
    common = {"data": data, "model": model} | _flat(settings)
    runs, given, found = _checked(_planned(name, listed, methods, seeds, common))

    def result_of(launch: Launch, title: str) -> JsonObject:
        if launch.name not in found:
            found[launch.name] = run(**given[launch.name])
        return dict(found[launch.name].figures)

    figures = run_each(runs, result_of)
    exhibit = picture_over({axis: tuple(map(_shown, own)) for axis, own in listed.items()}, name)
    written, folder = suite_runs.Table(name, None, seeds, figures, exhibit), Path(output_dir)
    written.write(folder)
    return Table(_by_row(runs, found), written.text(), folder / f"{name}.png")


def _by_row(
    runs: suite_runs.Runs, found: Mapping[str | None, Result]
) -> dict[tuple[str, str], list[Result]]:
    """The results by row and method, in the order of the runs; a failed one has none."""
    results: dict[tuple[str, str], list[Result]] = {(c.row, c.method): [] for c, _ in runs}
    for (cell, _), launch in runs.items():
        if launch.name in found:
            results[cell.row, cell.method].append(found[launch.name])
    return results


def _checked(
    planned: Iterator[tuple[Cell, Launch, dict[str, Any]]],
) -> tuple[dict[tuple[Cell, int], Launch], dict[str | None, Any], dict[str | None, Result]]:
    """The runs by cell and seed; by name what each is to be given, and results there are already.
    Raises `UserError` if two runs have one name, or a cell cannot be run."""
    runs: dict[tuple[Cell, int], Launch] = {}
    given: dict[str | None, Any] = {}
    found: dict[str | None, Result] = {}
    tried = set[Cell]()
    with plain_torch():
        for cell, launch, what in planned:
            if launch.name in given:
                raise UserError(f"grid: two runs would have the name {launch.name}")
            runs[cell, launch.run.seed], given[launch.name] = launch, what
            if (old := _earlier(what, launch)) is not None:
                found[launch.name] = old
            elif cell not in tried:
                refuse_any({cell.name: launch})
                tried.add(cell)
    return runs, given, found


def _planned(
    name: str,
    axes: Mapping[str, Sequence[Any]],
    methods: Sequence[Any],
    seeds: Sequence[Any],
    common: Mapping[str, Any],
) -> Iterator[tuple[Cell, Launch, dict[str, Any]]]:
    """Each run: its cell, its settings, and what :func:`onefold.run` is to be given. Data that is
    given as an object is read once for all of them."""
    read: dict[int, Any] = {}
    for values in product(*axes.values()):
        own = dict(zip(axes, values, strict=True))
        shown = tuple((axis, _shown(value)) for axis, value in own.items())
        row = "-".join(f"{axis}{value}" for axis, value in shown) or "data"
        for method, seed in product(methods, seeds):
            title = re.sub(r"[^\w.+-]", "_", f"{name}-{row}-{_shown(method)}-seed{seed}")
            given = {**common, "method": method, **_flat(own), "seed": seed, "name": title}
            if (data := given["data"]) is not None and not isinstance(data, str | Path):
                if id(data) not in read:
                    read[id(data)] = as_dataset(OWN, data)
                given["data"] = read[id(data)]
            launch = launch_of(
                dict.fromkeys(OBJECTS) | {n: v for n, v in given.items() if n not in NO_SETTINGS},
                given.get("loss"),
                given.get("augment"),
            )
            refuse_elsewhere(launch)
            if launch.dry_run:
                raise UserError("grid: dry_run needs the command line: onefold sweep --grid")
            yield Cell(row, launch.run.method, arguments=(), settings=shown), launch, given


def _earlier(given: Mapping[str, Any], launch: Launch) -> Result | None:
    """The finished run of the same settings, unless something of the user's is to see it run."""
    found = None if launch.overwrite else earlier(launch)
    check_place(launch)
    seen = given.get("metrics") or given.get("callbacks")
    return None if found is None or seen else Result(locate(launch), found)


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
    """The axes' values; a row is known by their names alone. Raises `UserError` for an axis that
    has no values, one without a name, or two of the same."""
    listed = {axis: list(values) for axis, values in axes.items()}
    for axis, values in listed.items():
        if not values:
            raise UserError(f"grid: {axis} has no values")
        own = [v for v in values if axis in ("data", "partition") and not isinstance(v, str | Path)]
        if any(_shown(value) == str(value) for value in own):
            raise UserError(
                f"grid: {axis} has values without names: onefold.register_dataset gives data one"
            )
        if like := [name for name, n in Counter(map(_shown, values)).items() if n > 1]:
            raise UserError(
                f"grid: {axis} has several values named {like[0]!r}; give each a name of its own"
            )
    return listed


def _shown(value: Any) -> str:
    """A value in a name: an object by its own."""
    return str(getattr(value, "__name__", getattr(value, "name", value)))
