"""The cells of HFLDD's tables and figures: every method by the number of classes of a client."""

from collections.abc import Callable, Mapping, Sequence

from cluster.studies import published_hfldd
from cluster.studies.cell import Cell, Scale
from cluster.studies.published import Published, PublishedRow, rows

PRESETS: Mapping[Scale, str] = {"paper": "hfldd-{dataset}", "small": "hfldd-{dataset}-small"}
METHODS = {
    "hfldd": ("--method=hfldd",),
    "hfldd-never": ("--method=hfldd", "--kip.stop=never"),
    "hfldd-without-dd": ("--method=hfldd", "--no-distilled"),
    "fedavg": ("--method=fedavg",),
    "fedprox": ("--method=fedprox", "--classifier.proximal=0.001"),  # the paper names no weight
    "fedseq": ("--method=fedseq",),
    "dynafed": ("--method=dynafed",),
    "centralised": ("--method=centralised",),
}
CENTRAL_EPOCHS: Mapping[Scale, str] = {"paper": "300", "small": "60"}
"""As many as the others have rounds."""
SET_SIZES: Mapping[Scale, Sequence[str]] = {
    "paper": ("50", "100", "200", "400"),  # Figure 7 names none
    "small": ("10", "20", "50", "100"),
}


def figure3(scale: Scale) -> list[Cell]:
    """Figures 3 to 6 and Tables II to IV: every method; HFLDD by both stopping rules, and without
    distillation."""
    return [
        _cell(scale, row, method, arguments, row.figures.get(method))
        for row in _rows(published_hfldd.FIGURE_3, scale)
        for method, arguments in METHODS.items()
    ]


def table5(scale: Scale) -> list[Cell]:
    """Other models; at small scale narrow ones, for a third of the rounds."""
    extra = ("--classifier.width=0.25", "--rounds=20") if scale == "small" else ()
    return [
        _cell(scale, row, method, (*METHODS[method], *extra), figure)
        for row in _rows(published_hfldd.TABLE_V, scale)
        for method, figure in row.figures.items()
    ]


def table6(scale: Scale) -> list[Cell]:
    """Table VI and Figure 8: K, the number of groups. Members distil once for all of them."""
    return [
        _cell(scale, row, method, ("--method=hfldd", f"--groups={method[7:]}"), figure)
        for row in _rows(published_hfldd.TABLE_VI, scale)
        for method, figure in row.figures.items()
    ]


def figure7(scale: Scale) -> list[Cell]:
    """How many images a member distils."""
    return [
        _cell(scale, row, f"hfldd-{size}", ("--method=hfldd", f"--kip.images={size}"), None)
        for row in _rows(published_hfldd.FIGURE_3, scale)
        if row.dataset == ("mnist" if scale == "small" else "cifar10")
        for size in SET_SIZES[scale]
    ]


def _rows(table: str, scale: Scale) -> list[PublishedRow]:
    """The table's rows; at small scale its first data set's, as MNIST and without its figures."""
    found = rows(table)
    if scale == "paper":
        return found
    return [
        PublishedRow("mnist", row.settings, dict.fromkeys(row.figures))
        for row in found
        if row.dataset == found[0].dataset
    ]


def _cell(
    scale: Scale,
    row: PublishedRow,
    method: str,
    arguments: Sequence[str],
    figure: Published | None,
) -> Cell:
    settings = dict(row.settings)
    classes = settings.pop("C")
    preset = PRESETS[scale].format(dataset=row.dataset)
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


TABLES: Mapping[str, Callable[[Scale], list[Cell]]] = {
    "hfldd": figure3,
    "hfldd-table5": table5,
    "hfldd-table6": table6,
    "hfldd-fig7": figure7,
}
