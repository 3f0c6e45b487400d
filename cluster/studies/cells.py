"""The paper's tables and figures as cells: which runs each number is the mean of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

from cluster.studies import fedd2s_cells, hfldd_cells, published
from cluster.studies.cell import Cell, Scale
from cluster.studies.published import PublishedRow
from fl.data.domains import find_names
from fl.errors import UserError
from fl.methods.prototypes import PrototypesConfig
from fl.methods.registry import get_method

VARIANTS = ("fedmho", "fedmho-md", "fedmho-sd")
ALPHAS = ("0.5", "0.3", "0.1")
PRESETS: Mapping[Scale, str] = {"small": "mnist-small", "paper": "paper-{dataset}"}
DOMAINS_TABLE = "fedaf-table2"
"""The one table whose data is the user's own folder."""
VARIATIONS = {
    # As in FedAF's paper; it names no settings of FedBN and FedGen.
    "fedprox": ("--method=fedprox", "--classifier.proximal=0.001"),
    "moon": ("--method=moon", "--classifier.mu=1"),
    "feddyn": ("--method=feddyn", "--classifier.alpha=0.01"),
    "fedbn-by-domain": ("--method=fedbn", "--tested=domain"),
    "fedaf-without-cdc": ("--method=fedaf", "--collaboration=0"),
    "fedaf-without-lgkm": ("--method=fedaf", "--knowledge=0"),
    "fedaf-clipped": ("--method=fedaf", "--clip=2"),  # as FedDM is; not in the paper
}
"""Launch arguments of the tables' methods that are a registered method with other settings."""


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


Rows = Callable[[Scale], Iterable[PublishedRow]]


def _table(
    rows: str | Rows, *extra: str, presets: Mapping[Scale, str] = PRESETS
) -> Callable[[Scale], list[Cell]]:

    def cells(scale: Scale) -> list[Cell]:
        found = published.rows(rows) if isinstance(rows, str) else rows(scale)
        return [
            Cell(
                row.name,
                method,
                (*_arguments(presets[scale], row, method), *extra),
                figure,
                tuple(row.settings.items()),
            )
            for row in found
            for method, figure in row.figures.items()
        ]

    return cells


def _arguments(preset: str, row: PublishedRow, method: str) -> tuple[str, ...]:
    own = VARIATIONS.get(method, (f"--method={method}",))
    settings = [
        argument
        for name, value in row.settings.items()
        for argument in (f"--{name}", *value.split(","))
    ]
    name = preset.format(dataset=row.dataset)
    return f"--preset={name}", f"--dataset={row.dataset}", *own, *settings


def _grid(methods: Sequence[str], **settings: Mapping[Scale, Sequence[str]]) -> Rows:
    """A figure of the paper on EMNIST, which prints no numbers: every alpha with every value."""

    def rows(scale: Scale) -> list[PublishedRow]:
        axes = {"alpha": ALPHAS, **{name: values[scale] for name, values in settings.items()}}
        return [
            PublishedRow("emnist", dict(zip(axes, values, strict=True)), dict.fromkeys(methods))
            for values in product(*axes.values())
        ]

    return rows


def _fid(scale: Scale) -> list[PublishedRow]:
    """Table XI. At small scale CVAEs train for six fifths of the paper's epochs."""
    return [
        replace(row, settings={**row.settings, "generator.epochs": epochs})
        if scale == "small"
        else row
        for row, epochs in zip(
            published.rows(published.TABLE_XI), ("12", "24", "36", "48", "60"), strict=True
        )
    ]


def _over_rounds(scale: Scale) -> list[PublishedRow]:
    """FedAF's paper has no MNIST, so at small scale the order of methods is compared alone."""
    if scale == "paper":
        return published.rows(published.FEDAF)
    return _on_mnist((*published.rows(published.FEDAF)[0].figures, "fedaf-clipped"))


def _with_resnet18(scale: Scale) -> list[PublishedRow]:
    """FedAF's Table 6; at small scale on MNIST too."""
    found = published.rows(published.FEDAF_6)
    return found if scale == "paper" else _on_mnist(tuple(found[0].figures))


def _on_mnist(methods: Sequence[str]) -> list[PublishedRow]:
    alphas = ("0.02", "0.05", "0.1")
    return [PublishedRow("mnist", {"alpha": alpha}, dict.fromkeys(methods)) for alpha in alphas]


def _by_domain(scale: Scale) -> list[PublishedRow]:
    """FedAF's Table 2: its figures are beside ours by domain, see :mod:`.suite_tables`."""
    return [PublishedRow("folder", {}, dict.fromkeys(published.FEDAF_2))]


LOCAL_EPOCHS: Mapping[Scale, Sequence[str]] = {
    "paper": ("10", "50", "200", "400"),
    "small": ("2", "10", "40", "80"),  # a fifth of the paper's, as the preset's 40 of 200
}
SYNTHETIC: Mapping[Scale, Sequence[str]] = dict.fromkeys(
    ("small", "paper"), ("2000", "6000", "12000", "24000")
)
DISTILLED = tuple(m for m in published.BASELINES.split() if m != "fedavg")
"""The baselines that train at the server, epoch by epoch."""

TABLES = {
    "table3": _table(published.TABLE_3),
    "table4": _table(published.TABLE_4, "--filter=none"),
    "table5": _table(published.TABLE_5, "--alpha=0.5"),
    "table6": _table(published.TABLE_6),
    "table8": _table(published.TABLE_8, "--num-large=10"),
    "table9": _table(published.TABLE_9, presets={"small": "table9-small", "paper": "table9-paper"}),
    "loss-weights": _table(published.LOSS_WEIGHTS),
    "fig5": _table(_grid((*DISTILLED, *VARIANTS))),
    "fig6": _table(_grid(VARIANTS), "--fusion.epochs=100"),
    "fig7": _table(_grid(VARIANTS, **{"classifier.epochs": LOCAL_EPOCHS})),
    "fig8": _table(_grid(VARIANTS[1:], **{"num-samples": SYNTHETIC})),
    "fid": _table(_fid, "--fid"),
    "fedaf": _table(
        _over_rounds, presets={"small": "fedaf-mnist-small", "paper": "fedaf-{dataset}"}
    ),
    DOMAINS_TABLE: _table(
        _by_domain, presets={"small": "fedaf-domains-small", "paper": "fedaf-domains"}
    ),
    "fedaf-table6": _table(
        _with_resnet18, presets={"small": "fedaf-resnet18-small", "paper": "fedaf-resnet18"}
    ),
    **fedd2s_cells.TABLES,
    **hfldd_cells.TABLES,
}
