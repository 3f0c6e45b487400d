"""A grid of the user's own: its settings and values, the runs of every combination, its picture."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product, takewhile
from pathlib import Path

from cluster.run.command_line import load_yaml, parse
from cluster.run.options import Launch
from cluster.studies.cells import numbers
from cluster.studies.comparison import Cell, Figure
from cluster.studies.exhibits import Exhibit, over_setting, over_time
from fl.errors import UserError

Axes = Mapping[str, tuple[str, ...]]
"""The values of each setting that is varied, by its name on the command line."""


def parse_grid(arguments: Sequence[str]) -> tuple[dict[tuple[Cell, int], Launch], str, Exhibit]:
    """The runs by cell and seed, the name and the picture of the grid that these arguments name:
    ``NAME=VALUE,...``, or a file, before launch options.

    Raises:
        UserError: one line, for whatever is wrong, also with a run of it.
    """
    first = list(takewhile(lambda argument: not argument.startswith("--"), arguments))
    axes, options = _axes(first), arguments[len(first) :]
    listed = axes.pop("seed", None)
    seeds: tuple[int | None, ...] = (None,)  # the options' own
    if listed is not None:
        seeds = tuple(numbers("seed", ",".join(listed)))
    methods = axes.pop("method", None)
    if not (axes or methods or len(seeds) > 1):
        raise UserError(
            "a grid needs settings with values, before the options: method=fedavg,fedprox "
            "alpha=0.1,0.5 seed=0,1,2"
        )
    runs: dict[tuple[Cell, int], Launch] = {}
    rows = product(*axes.values())
    for values, method, seed in product(rows, methods or (None,), seeds):
        settings = tuple(zip(axes, values, strict=True))
        own = tuple(f"--{setting}={value}" for setting, value in settings)
        own = own if method is None else (f"--method={method}", *own)
        more = () if seed is None else (f"--seed={seed}",)
        launch = parse(["--name=grid", *options, *own, *more])
        name = str(launch.name)
        row = "-".join(f"{s}{v}" for s, v in settings) or launch.run.dataset
        cell = Cell(row, launch.run.method, own, settings=settings)
        run_name = re.sub(r"[^\w.+-]", "_", f"{name}-{cell.name}-seed{launch.run.seed}")
        runs[cell, launch.run.seed] = replace(launch, name=run_name, resume=True)
    return runs, name, picture_over(axes, name)


def _axes(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        if word.endswith((".yaml", ".yml")):
            given = {n: _listed(n, v) for n, v in load_yaml(Path(word)).items()}
        elif "=" in word:
            name, _, listed = word.partition("=")
            given = {name: tuple(listed.split(","))}
        else:
            raise UserError(f"expected NAME=VALUE,VALUE, got {word!r}; options come last")
        for name, values in given.items():
            setting = name.replace("_", "-")
            if setting in found:
                raise UserError(f"{setting} is given twice")
            if not all(values) or not values:
                raise UserError(f"{setting} has an empty value")
            found[setting] = tuple(dict.fromkeys(values))
    return found


def _listed(setting: str, values: object) -> tuple[str, ...]:
    if isinstance(values, dict):
        raise UserError(f"{setting} in a grid's file: write nested settings dotted, as a.b: [1, 2]")
    return tuple(map(str, values if isinstance(values, list) else [values]))


def picture_over(axes: Axes, title: str) -> Exhibit:
    """Accuracy over the first setting with several values; without one over time."""
    varied = next((name for name, values in axes.items() if len(values) > 1), None)

    def place(figure: Figure) -> str:
        others = [f"{n} {v}" for n, v in figure.cell.settings if n != varied]
        others += [f"scored on {figure.scored_on}"] if "client" in figure.scored_on else []
        return ", ".join(others) or title

    if varied is None:
        return Exhibit(over_time, "epoch or round", place=place)
    return Exhibit(partial(over_setting, varied), varied, place=place)
