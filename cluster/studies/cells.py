"""The papers' tables and figures as cells: which runs each number is the mean of; and the command's
options: which table or figure, at which scale, where."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml

from cluster.run.command_line import parse_record, presets, with_slurm
from cluster.run.options import SlurmOptions
from cluster.studies.comparison import Cell, PublishedRow, Scale, rows
from fl.bounds import OneOf, Settings
from fl.data.catalogue import find_names
from fl.data.datasets import NAMES
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

    ``dataset`` leaves the table's rows of that data set alone. Where it has none, the data set
    replaces the table's first one, whose numbers then are not compared with, and the preset is the
    new one's where it has its own. ``folder`` is where the domains of ``DOMAINS_TABLE`` lie.

    Raises:
        UserError: that table's folder is missing or laid out otherwise, or another table has one.
    """
    if (name == DOMAINS_TABLE) != (folder is not None):
        raise UserError(f"{DOMAINS_TABLE} needs data_folder, and no other table takes it")
    cells = TABLES[name](scale)
    if folder is not None:
        clients = len(find_names(folder)[0])
        cells = [with_domains(cell, folder, clients) for cell in cells]
    if dataset:
        cells = _on(dataset, cells)
    return [c for c in cells if not only or any(fnmatch(c.name, pattern) for pattern in only)]


def _on(dataset: str, cells: Sequence[Cell]) -> list[Cell]:
    """The table's rows of the data set, or its first data set's with this one in their place."""
    by_data: dict[str, list[Cell]] = {}
    for cell in cells:
        (own,) = (a.partition("=")[2] for a in cell.arguments if a.startswith("--dataset="))
        by_data.setdefault(own, []).append(cell)
    first, rows = next(iter(by_data.items()))
    return by_data.get(dataset) or [_swapped(cell, first, dataset) for cell in rows]


def _swapped(cell: Cell, own: str, dataset: str) -> Cell:
    known = presets()
    swapped = {f"--dataset={own}": f"--dataset={dataset}"}
    swapped[f"--preset=paper-{own}"] = f"--preset=paper-{dataset}"
    for preset in known:
        if (its_own := re.sub(rf"\b{own}\b", dataset, preset)) in known:
            swapped[f"--preset={preset}"] = f"--preset={its_own}"
    arguments = tuple(swapped.get(argument, argument) for argument in cell.arguments)
    row = cell.row.replace(own, dataset, 1)
    return replace(cell, row=row, arguments=arguments, paper=None)


def with_domains(cell: Cell, folder: Path, clients: int) -> Cell:
    """The cell with the folder's domains, a client for each of them."""
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
BYTES_TABLE = "fedaf-table7"
"""The one table that is computed without a run."""
EXHIBITS = (*TABLES, BYTES_TABLE)


@dataclass(frozen=True, kw_only=True)
class SuiteOptions(Settings):
    """Regenerate a table or figure of the papers of FedMHO, FedAF, FedD2S or HFLDD, or of ours."""

    name: Annotated[str, OneOf(EXHIBITS), tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Table: table3, table4, table5, table6, table8, table9 or loss-weights. Figure: fig5, fig6,
    fig7, fig8 or fid, with a picture. Of FedAF's paper: fedaf (accuracy over rounds, Tables 1 and 4
    and Figure 3), fedaf-table2 (domains), fedaf-table6 (ResNet-18) or fedaf-table7 (bytes). Of
    FedD2S's: fedd2s-table2 (all methods), fedd2s-table3 (head models), fedd2s-fig5 (epochs),
    fedd2s-fig6 (dropping sets) or fedd2s-fig7 (dropping rates). Of HFLDD's: hfldd (Figures 3 to 6
    and Tables II to IV), hfldd-table5 (models), hfldd-table6 (number of groups, Table VI and
    Figure 8) or hfldd-fig7 (size of the distilled sets). Ours: open (FedMHO-Open, and
    decoders of all clients) or open-clients (the same with 50 and 100 clients)."""
    scale: Scale = "small"
    """small, or just --small: a sixth of the images and narrow models, for two cores. paper: for
    GPUs."""
    seeds: str = "0,1,2"
    """Seeds of a cell's runs, with commas between."""
    only: tuple[str, ...] = ()
    """Patterns of the cells to run, as in 'mnist-alpha0.5-*'. Default: all."""
    dataset: Annotated[str, OneOf(NAMES)] | None = None
    """Rows of this data set alone. Where the paper has none: this instead of its first data set,
    whose numbers are then not compared."""
    data_folder: Path | None = None
    """For fedaf-table2: path with a folder per domain, in each a folder per class, as the paper has
    DomainNet's ten most frequent classes."""
    output_dir: Path = Path("runs")
    """Directory of the runs and of the table."""
    data_root: Path = Path("data")
    """Where the data sets lie, in torchvision's layout."""
    runtime: Literal["ray", "inprocess"] = "ray"
    """As for the launch command."""
    dry_run: bool = False
    """Name the runs and whether each is finished; start none. At scale paper a run of each kind is
    tried by --smoke, to estimate the whole table."""
    slurm: SlurmOptions = SlurmOptions()
    """Send what is not finished to Slurm as one job array. Once all is finished, the same command
    makes the table."""

    def check_further(self) -> None:
        """Refuses seeds that are no numbers."""
        _ = self.seed_numbers

    @property
    def seed_numbers(self) -> list[int]:
        """The seeds, each once."""
        return numbers("seeds", self.seeds)


def numbers(name: str, text: str, *, least: int = 0) -> list[int]:
    """A setting's numbers, each once; raises `UserError` if one is no whole number, or too
    small."""
    found = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < least:
            raise UserError(
                f"{name} must be whole numbers from {least}, with commas between, got {part!r}"
            )
        found.append(int(part))
    return list(dict.fromkeys(found))


def parse_suite(argv: Sequence[str]) -> SuiteOptions:
    """Parses the command line; raises as :func:`cluster.run.command_line.parse`."""
    argv = ["--scale=small" if a == "--small" else a for a in with_slurm(argv)]
    options: SuiteOptions = parse_record(SuiteOptions, argv, "python -m cluster.suite")
    return options
