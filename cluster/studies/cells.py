"""The paper's tables and figures as cells: which runs each number is the mean of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import product
from typing import Literal

from cluster.studies import published
from cluster.studies.published import Published, PublishedRow

Scale = Literal["small", "paper"]
VARIANTS = ("fedmho", "fedmho-md", "fedmho-sd")
ALPHAS = ("0.5", "0.3", "0.1")
PRESETS: Mapping[Scale, str] = {"small": "mnist-small", "paper": "paper-{dataset}"}
VARIATIONS = {
    "fedprox": ("--method=fedprox", "--classifier.proximal=0.001"),  # as in FedAF's paper
    "fedaf-without-cdc": ("--method=fedaf", "--collaboration=0"),
    "fedaf-without-lgkm": ("--method=fedaf", "--knowledge=0"),
    "fedaf-clipped": ("--method=fedaf", "--clip=2"),  # as FedDM is; not in the paper
}
"""Launch arguments of the tables' methods that are a registered method with other settings."""


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


def make(
    name: str, scale: Scale, only: tuple[str, ...] = (), dataset: str | None = None
) -> list[Cell]:
    """The table's cells; with ``only`` those whose name fits one of the patterns.

    ``dataset`` replaces the paper's data set; its numbers then are not compared with.
    """
    cells = TABLES[name](scale)
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
    methods = (*published.rows(published.FEDAF)[0].figures, "fedaf-clipped")
    alphas = ("0.02", "0.05", "0.1")
    return [PublishedRow("mnist", {"alpha": alpha}, dict.fromkeys(methods)) for alpha in alphas]


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
}
