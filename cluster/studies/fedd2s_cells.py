"""The cells of FedD2S's tables and figures. Our copy of the paper has none of its numbers, so there
is nothing to compare with: rows, columns and the claimed order alone."""

from collections.abc import Callable, Mapping, Sequence

from cluster.studies.cell import Cell, Scale

ALPHAS = ("0.1", "0.5", "1")
RATES: Mapping[Scale, Mapping[str, str]] = {
    "paper": {"0.1": "3", "0.5": "5", "1": "7"},
    "small": {"0.1": "2", "0.5": "3", "1": "4"},  # a client takes part in half as many rounds
}
"""The dropping rate Z0 by alpha, of all methods that drop layers."""
PRESETS: Mapping[Scale, str] = {"paper": "fedd2s-{dataset}", "small": "fedd2s-{dataset}-small"}
DATASETS: Mapping[Scale, Sequence[str]] = {
    "paper": ("emnist", "cifar10", "cinic10", "cifar100"),  # EMNIST for FEMNIST
    "small": ("mnist",),
}
SETS = {
    "F2": ("F2", "F3"),
    "F1": ("F1", "F2", "F3"),
    "C3": ("C3", "F1", "F2", "F3"),
    "C2": ("C2", "C3", "F1", "F2", "F3"),
}
"""The dropping sets of Table 3 by their shallowest layer: L2, L1, L3 and L4."""
METHODS = {
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
DROPPING = ("fedper+", "fedrep+", "fedd2s")


def table2(scale: Scale) -> list[Cell]:
    """Every method at every alpha."""
    return [
        _cell(scale, dataset, {"alpha": alpha}, method, METHODS[method])
        for dataset in DATASETS[scale]
        for alpha in ALPHAS
        for method in METHODS
    ]


def table3(scale: Scale) -> list[Cell]:
    """Head models against the distance of features, for every dropping set; alpha 0.1."""
    return [
        _cell(scale, dataset, {"alpha": "0.1"}, f"fedd2s{kind}-from-{name}", arguments)
        for dataset in _cifar10(scale)
        for name in SETS
        for kind, distance in (("", "kl"), ("-mse", "mse"))
        for arguments in [(*_dropping(name), f"--classifier.distance={distance}")]
    ]


def fig5(scale: Scale) -> list[Cell]:
    """More epochs, with and without layer dropping; alpha 0.1."""
    kinds = {"fedd2s": (), "fedd2s-fixed": ("--fixed-layer=3",)}
    return [
        _cell(
            scale,
            dataset,
            {"alpha": "0.1", "classifier.epochs": epochs},
            method,
            ("--method=fedd2s", f"--server-epochs={epochs}", *arguments),
        )
        for dataset in DATASETS[scale]
        for epochs in ("1", "2", "4", "8")
        for method, arguments in kinds.items()
    ]


def fig6(scale: Scale) -> list[Cell]:
    """Accuracy over rounds for every dropping set; alpha 0.1."""
    return [
        _cell(scale, dataset, {"alpha": "0.1"}, f"fedd2s-from-{name}", _dropping(name))
        for dataset in _cifar10(scale)
        for name in SETS
    ]


def fig7(scale: Scale) -> list[Cell]:
    """The dropping rate at every alpha."""
    dataset = "cifar100" if scale == "paper" else "mnist"
    return [
        _cell(scale, dataset, {"alpha": alpha, "dropping.rate": rate}, "fedd2s", METHODS["fedd2s"])
        for alpha in ALPHAS
        for rate in {"paper": ("1", "3", "5", "7", "9"), "small": ("1", "2", "4", "8")}[scale]
    ]


def _cifar10(scale: Scale) -> Sequence[str]:
    return ("cifar10",) if scale == "paper" else DATASETS[scale]


def _dropping(name: str) -> tuple[str, ...]:
    return (*METHODS["fedd2s"], "--dropping.layers", *SETS[name])


def _cell(
    scale: Scale,
    dataset: str,
    settings: Mapping[str, str],
    method: str,
    arguments: Sequence[str],
) -> Cell:
    """A method's cell; layers are dropped at the rate of its alpha, unless that is a setting."""
    preset = PRESETS[scale].format(dataset=dataset)
    own = [f"--{name}={value}" for name, value in settings.items()]
    drops = method.startswith(DROPPING) and "dropping.rate" not in settings
    if drops:
        own.append(f"--dropping.rate={RATES[scale][settings['alpha']]}")
    row = "-".join([dataset, *(f"{name}{value}" for name, value in settings.items())])
    return Cell(
        row,
        method,
        (f"--preset={preset}", f"--dataset={dataset}", *own, *arguments),
        settings=tuple(settings.items()),
    )


TABLES: Mapping[str, Callable[[Scale], list[Cell]]] = {
    "fedd2s-table2": table2,
    "fedd2s-table3": table3,
    "fedd2s-fig5": fig5,
    "fedd2s-fig6": fig6,
    "fedd2s-fig7": fig7,
}
