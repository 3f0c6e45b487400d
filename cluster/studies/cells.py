"""The papers' tables and figures as cells: which runs each number is the mean of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

from cluster.studies.comparison import Cell, Published, PublishedRow, Scale, published, rows
from fl.data.domains import find_names
from fl.errors import UserError
from fl.methods.prototypes import PrototypesConfig
from fl.methods.registry import get_method

Rows = Callable[[Scale], Iterable[PublishedRow]]
ByScale = Mapping[Scale, Sequence[str]]
Presets = Mapping[Scale, str]

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


# FedMHO and FedAF.

VARIANTS = ("fedmho", "fedmho-md", "fedmho-sd")
DISTILLED = ("feddf", "dense", "co-boosting", "fedcvae-ens")
"""The baselines that train at the server, epoch by epoch."""
ALPHAS = ("0.5", "0.3", "0.1")
PRESETS: Presets = {"small": "mnist-small", "paper": "paper-{dataset}"}
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
LOCAL_EPOCHS: ByScale = {
    "paper": ("10", "50", "200", "400"),
    "small": ("2", "10", "40", "80"),  # a fifth of the paper's, as the preset's 40 of 200
}
SYNTHETIC: ByScale = dict.fromkeys(("small", "paper"), ("2000", "6000", "12000", "24000"))


def _table(
    table: str | Rows, *extra: str, presets: Presets = PRESETS
) -> Callable[[Scale], list[Cell]]:
    def cells(scale: Scale) -> list[Cell]:
        return [
            Cell(
                row.name,
                method,
                (*_arguments(presets[scale], row, method), *extra),
                figure,
                tuple(row.settings.items()),
            )
            for row in (rows(table) if isinstance(table, str) else table(scale))
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


def _grid(methods: Sequence[str], **settings: ByScale) -> Rows:
    """A figure of the paper on EMNIST, which prints no numbers: every alpha with every value."""

    def cut(scale: Scale) -> list[PublishedRow]:
        axes = {"alpha": ALPHAS, **{name: values[scale] for name, values in settings.items()}}
        return [
            PublishedRow("emnist", dict(zip(axes, values, strict=True)), dict.fromkeys(methods))
            for values in product(*axes.values())
        ]

    return cut


def _fid(scale: Scale) -> list[PublishedRow]:
    """Table XI. At small scale CVAEs train for six fifths of the paper's epochs."""
    if scale == "paper":
        return rows("fid")
    epochs = ("12", "24", "36", "48", "60")
    return [
        replace(row, settings={**row.settings, "generator.epochs": number})
        for row, number in zip(rows("fid"), epochs, strict=True)
    ]


def _fedaf(scale: Scale) -> list[PublishedRow]:
    """FedAF's paper has no MNIST, so at small scale the order of methods is compared alone."""
    if scale == "paper":
        return rows("fedaf")
    return _on_mnist((*rows("fedaf")[0].figures, "fedaf-clipped"))


def _with_resnet18(scale: Scale) -> list[PublishedRow]:
    """FedAF's Table 6; at small scale on MNIST too."""
    found = rows("fedaf-table6")
    return found if scale == "paper" else _on_mnist(tuple(found[0].figures))


def _on_mnist(methods: Sequence[str]) -> list[PublishedRow]:
    alphas = ("0.02", "0.05", "0.1")
    return [PublishedRow("mnist", {"alpha": alpha}, dict.fromkeys(methods)) for alpha in alphas]


def _by_domain(scale: Scale) -> list[PublishedRow]:
    """FedAF's Table 2: its figures are beside ours by domain, see :mod:`.suite_tables`."""
    return [PublishedRow("folder", {}, dict.fromkeys(published()[DOMAINS_TABLE]["methods"]))]


# FedD2S. Our copy of the paper has none of its numbers: rows, columns and the claimed order alone.

FEDD2S_RATES: Mapping[Scale, Mapping[str, str]] = {
    "paper": {"0.1": "3", "0.5": "5", "1": "7"},
    "small": {"0.1": "2", "0.5": "3", "1": "4"},  # a client takes part in half as many rounds
}
"""The dropping rate Z0 by alpha, of all methods that drop layers."""
FEDD2S_DATASETS: ByScale = {
    "paper": ("emnist", "cifar10", "cinic10", "cifar100"),  # EMNIST for FEMNIST
    "small": ("mnist",),
}
DROPPING_SETS = {
    "F2": ("F2", "F3"),
    "F1": ("F1", "F2", "F3"),
    "C3": ("C3", "F1", "F2", "F3"),
    "C2": ("C2", "C3", "F1", "F2", "F3"),
}
"""The dropping sets of Table 3 by their shallowest layer: L2, L1, L3 and L4."""
FEDD2S_METHODS = {
    "local": ("--method=local",),
    "fedavg": ("--method=fedavg", "--tested=clients"),
    "fedavg-tuned": ("--method=fedavg", "--tested=tuned"),
    "fedmd": ("--method=fedmd", "--classifier.epochs=2"),
    "fedper": ("--method=fedper",),
    "fedrep": ("--method=fedrep",),
    "fedict": ("--method=fedict", "--classifier.epochs=2"),
    "pfedsd": ("--method=pfedsd",),
    "fedper+": ("--method=fedper+",),
    "fedrep+": ("--method=fedrep+",),
    "fedd2s": ("--method=fedd2s", "--classifier.epochs=2"),
}
"""Launch arguments. All train E = 4 epochs a round; those that distil, 2 and 2 (Section IV-A)."""


def fedd2s_table2(scale: Scale) -> list[Cell]:
    """Every method at every alpha."""
    return [
        _fedd2s(scale, dataset, {"alpha": alpha}, method, arguments)
        for dataset in FEDD2S_DATASETS[scale]
        for alpha in FEDD2S_RATES[scale]
        for method, arguments in FEDD2S_METHODS.items()
    ]


def fedd2s_table3(scale: Scale) -> list[Cell]:
    """Head models against the distance of features, for every dropping set; alpha 0.1."""
    return [
        _dropping(scale, name, f"fedd2s{kind}", f"--classifier.distance={distance}")
        for name in DROPPING_SETS
        for kind, distance in (("", "kl"), ("-mse", "mse"))
    ]


def fedd2s_fig5(scale: Scale) -> list[Cell]:
    """More epochs, with and without layer dropping; alpha 0.1."""
    return [
        _fedd2s(
            scale,
            dataset,
            {"alpha": "0.1", "classifier.epochs": epochs},
            method,
            ("--method=fedd2s", f"--server-epochs={epochs}", *arguments),
        )
        for dataset in FEDD2S_DATASETS[scale]
        for epochs in ("1", "2", "4", "8")
        for method, arguments in (("fedd2s", ()), ("fedd2s-fixed", ("--fixed-layer=3",)))
    ]


def fedd2s_fig6(scale: Scale) -> list[Cell]:
    """Accuracy over rounds for every dropping set; alpha 0.1."""
    return [_dropping(scale, name, "fedd2s") for name in DROPPING_SETS]


def fedd2s_fig7(scale: Scale) -> list[Cell]:
    """The dropping rate at every alpha."""
    dataset = "cifar100" if scale == "paper" else "mnist"
    own = FEDD2S_METHODS["fedd2s"]
    return [
        _fedd2s(scale, dataset, {"alpha": alpha, "dropping.rate": rate}, "fedd2s", own)
        for alpha in FEDD2S_RATES[scale]
        for rate in {"paper": ("1", "3", "5", "7", "9"), "small": ("1", "2", "4", "8")}[scale]
    ]


def _dropping(scale: Scale, name: str, method: str, *extra: str) -> Cell:
    """FedD2S with one of the dropping sets."""
    layers = ("--dropping.layers", *DROPPING_SETS[name])
    arguments = (*FEDD2S_METHODS["fedd2s"], *layers, *extra)
    dataset = "cifar10" if scale == "paper" else "mnist"
    return _fedd2s(scale, dataset, {"alpha": "0.1"}, f"{method}-from-{name}", arguments)


def _fedd2s(
    scale: Scale,
    dataset: str,
    settings: Mapping[str, str],
    method: str,
    arguments: Sequence[str],
) -> Cell:
    """A method's cell; layers are dropped at the rate of its alpha, unless that is a setting."""
    preset = f"fedd2s-{dataset}" + ("-small" if scale == "small" else "")
    own = [f"--{name}={value}" for name, value in settings.items()]
    drops = method.startswith(("fedper+", "fedrep+", "fedd2s"))
    if drops and "dropping.rate" not in settings:
        own.append(f"--dropping.rate={FEDD2S_RATES[scale][settings['alpha']]}")
    return Cell(
        PublishedRow(dataset, settings, {}).name,
        method,
        (f"--preset={preset}", f"--dataset={dataset}", *own, *arguments),
        settings=tuple(settings.items()),
    )


# HFLDD: every method by the number of classes of a client.

HFLDD_METHODS = {
    "hfldd": ("--method=hfldd",),
    "hfldd-never": ("--method=hfldd", "--kip.stop=never"),
    "hfldd-without-dd": ("--method=hfldd", "--no-distilled"),
    "fedavg": ("--method=fedavg",),
    "fedprox": ("--method=fedprox", "--classifier.proximal=0.001"),  # the paper names no weight
    "fedseq": ("--method=fedseq",),
    "dynafed": ("--method=dynafed",),
    "centralised": ("--method=centralised",),
}
CENTRAL_EPOCHS: Presets = {"paper": "300", "small": "60"}
"""As many as the others have rounds."""
SET_SIZES: ByScale = {
    "paper": ("50", "100", "200", "400"),  # Figure 7 names none
    "small": ("10", "20", "50", "100"),
}


def hfldd_figure3(scale: Scale) -> list[Cell]:
    """Figures 3 to 6 and Tables II to IV: every method; HFLDD by both stopping rules, and without
    distillation."""
    return [
        _hfldd(scale, row, method, arguments, row.figures.get(method))
        for row in _hfldd_rows("hfldd", scale)
        for method, arguments in HFLDD_METHODS.items()
    ]


def hfldd_table5(scale: Scale) -> list[Cell]:
    """Other models; at small scale narrow ones, for a third of the rounds."""
    extra = ("--classifier.width=0.25", "--rounds=20") if scale == "small" else ()
    return [
        _hfldd(scale, row, method, (*HFLDD_METHODS[method], *extra), figure)
        for row in _hfldd_rows("hfldd-table5", scale)
        for method, figure in row.figures.items()
    ]


def hfldd_table6(scale: Scale) -> list[Cell]:
    """Table VI and Figure 8: K, the number of groups. Members distil once for all of them."""
    return [
        _hfldd(scale, row, method, ("--method=hfldd", f"--groups={method[7:]}"), figure)
        for row in _hfldd_rows("hfldd-table6", scale)
        for method, figure in row.figures.items()
    ]


def hfldd_figure7(scale: Scale) -> list[Cell]:
    """How many images a member distils."""
    return [
        _hfldd(scale, row, f"hfldd-{size}", ("--method=hfldd", f"--kip.images={size}"), None)
        for row in _hfldd_rows("hfldd", scale)
        if row.dataset == ("mnist" if scale == "small" else "cifar10")
        for size in SET_SIZES[scale]
    ]


def _hfldd_rows(table: str, scale: Scale) -> list[PublishedRow]:
    """The table's rows; at small scale its first data set's, as MNIST and without its figures."""
    found = rows(table)
    if scale == "paper":
        return found
    return [
        PublishedRow("mnist", row.settings, dict.fromkeys(row.figures))
        for row in found
        if row.dataset == found[0].dataset
    ]


def _hfldd(
    scale: Scale,
    row: PublishedRow,
    method: str,
    arguments: Sequence[str],
    figure: Published | None,
) -> Cell:
    settings = dict(row.settings)
    classes = settings.pop("C")
    preset = f"hfldd-{row.dataset}" + ("-small" if scale == "small" else "")
    kind = ["--partition.kind=iid"]
    if classes != "10":
        kind = ["--partition.kind=classes", f"--partition.classes-per-client={classes}"]
    if method == "centralised":
        arguments = (*arguments, "--rounds=1", f"--fit.epochs={CENTRAL_EPOCHS[scale]}")
    return Cell(
        row.name,
        method,
        (
            *(f"--preset={preset}", f"--dataset={row.dataset}", *kind, *arguments),
            *(f"--{name}={value}" for name, value in settings.items()),
        ),
        figure,
        tuple(row.settings.items()),
    )


TABLES: dict[str, Callable[[Scale], list[Cell]]] = {
    "table3": _table("table3"),
    "table4": _table("table4", "--filter=none"),
    "table5": _table("table5", "--alpha=0.5"),
    "table6": _table("table6"),
    "table8": _table("table8", "--num-large=10"),
    "table9": _table("table9", presets={"small": "table9-small", "paper": "table9-paper"}),
    "loss-weights": _table("loss-weights"),
    "fig5": _table(_grid((*DISTILLED, *VARIANTS))),
    "fig6": _table(_grid(VARIANTS), "--fusion.epochs=100"),
    "fig7": _table(_grid(VARIANTS, **{"classifier.epochs": LOCAL_EPOCHS})),
    "fig8": _table(_grid(VARIANTS[1:], **{"num-samples": SYNTHETIC})),
    "fid": _table(_fid, "--fid"),
    "fedaf": _table(_fedaf, presets={"small": "fedaf-mnist-small", "paper": "fedaf-{dataset}"}),
    DOMAINS_TABLE: _table(
        _by_domain, presets={"small": "fedaf-domains-small", "paper": "fedaf-domains"}
    ),
    "fedaf-table6": _table(
        _with_resnet18, presets={"small": "fedaf-resnet18-small", "paper": "fedaf-resnet18"}
    ),
    "fedd2s-table2": fedd2s_table2,
    "fedd2s-table3": fedd2s_table3,
    "fedd2s-fig5": fedd2s_fig5,
    "fedd2s-fig6": fedd2s_fig6,
    "fedd2s-fig7": fedd2s_fig7,
    "hfldd": hfldd_figure3,
    "hfldd-table5": hfldd_table5,
    "hfldd-table6": hfldd_table6,
    "hfldd-fig7": hfldd_figure7,
}
