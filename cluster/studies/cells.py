"""The papers' tables and figures as cells: which runs each number is the mean of."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from cluster.studies.comparison import Cell, PublishedRow, Scale, rows
from fl.data.catalogue import find_names
from fl.errors import UserError
from fl.methods.prototypes import PrototypesConfig
from fl.methods.registry import get_method

DOMAINS_TABLE = "fedaf-table2"
"""The one table whose data is the user's own folder."""


def make(
    name: str,
    scale: Scale,
    only: tuple[str, ...] = (),
    dataset: str | None = None,
    folder: Path | None = None,
) -> list[Cell]:
    """The table's cells; with ``only`` those whose name fits one of the patterns.

    ``dataset`` replaces the paper's data set; its numbers then are not compared with. ``folder`` is
    where the domains of ``DOMAINS_TABLE`` lie.

    Raises:
        UserError: that table's folder is missing or laid out otherwise, or another table has one.
    """
    if (name == DOMAINS_TABLE) != (folder is not None):
        raise UserError(f"data_folder goes with {DOMAINS_TABLE}, which needs it, and with no other")
    cells = TABLES[name](scale)
    if folder is not None:
        cells = [_with_domains(folder, cell) for cell in cells]
    if dataset:
        cells = list(dict.fromkeys(_on(dataset, cell) for cell in cells))
    return [c for c in cells if not only or any(fnmatch(c.name, pattern) for pattern in only)]


def _on(dataset: str, cell: Cell) -> Cell:
    own = next(a for a in cell.arguments if a.startswith("--dataset=")).partition("=")[2]
    if own == dataset:
        return cell
    swapped = {f"--dataset={own}": f"--dataset={dataset}"}
    swapped[f"--preset=paper-{own}"] = f"--preset=paper-{dataset}"
    arguments = tuple(swapped.get(argument, argument) for argument in cell.arguments)
    row = cell.row.replace(own, dataset, 1)
    return replace(cell, row=row, arguments=arguments, paper=None)


def _with_domains(folder: Path, cell: Cell) -> Cell:
    """The cell with a client for each of the folder's domains."""
    clients = len(find_names(folder)[0])
    own = [f"--data.folder={folder}", f"--num-clients={clients}"]
    if issubclass(get_method(cell.registered).config, PrototypesConfig):
        own.append(f"--num-large={clients}")
    return replace(cell, arguments=(*cell.arguments, *own))


def _cells(name: str, table: Mapping[str, Any], scale: Scale) -> list[Cell]:
    """A table of ``tables.yaml``, where its keys are explained."""
    table = {**table, **table[scale]}
    return [
        _cell(table, row, method)
        for row in _rows(name, table)
        for method in table.get("methods") or row.figures or table["variants"]
    ]


def _rows(name: str, table: Mapping[str, Any]) -> list[PublishedRow]:
    if "axes" in table:
        names, axes = table["axes"].keys(), table["axes"].values()
        return [
            PublishedRow(dataset, dict(zip(names, map(str, values), strict=True)), {})
            for dataset in table["datasets"]
            for values in product(*axes)
        ]
    instead = table.get("instead", {})
    return [
        replace(row, settings={n: instead.get(v, v) for n, v in row.settings.items()})
        for row in rows(name)
    ]


def _cell(table: Mapping[str, Any], row: PublishedRow, method: str) -> Cell:
    own = f"{table.get('variants', {}).get(method, '')} {table.get('arguments', '')}"
    if "--method=" not in own:
        own = f"--method={method} {own}"
    words = f"--preset={table['preset']} --dataset={row.dataset} {own}".format(
        dataset=row.dataset,
        rate=table.get("rates", {}).get(row.settings.get("alpha")),
        central=table.get("central"),
        classifier_epochs=row.settings.get("classifier.epochs"),
    )
    settings = tuple(row.settings.items())
    arguments = (a for name, value in settings for a in _arguments(name, value))
    return Cell(row.name, method, (*words.split(), *arguments), row.figures.get(method), settings)


def _arguments(name: str, value: str) -> list[str]:
    """A setting of a row, for the launch command."""
    if name == "C":  # classes per client, of ten
        iid = ["--partition.kind=iid"]
        by_classes = ["--partition.kind=classes", f"--partition.classes-per-client={value}"]
        return iid if value == "10" else by_classes
    return [f"--{name}", *value.split(",")] if "," in value else [f"--{name}={value}"]


TABLES: dict[str, Callable[[Scale], list[Cell]]] = {
    name: partial(_cells, name, table)
    for name, table in yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text()).items()
    if not name.startswith(".")
}
