"""The papers' accuracies, in percent: mean and deviation. FedMHO's (WWW 2026; TABLE_XI: arXiv), and
FedAF's (CVPR 2024).

A line is a row of a table: a data set, settings, and after the colon the figures of the methods
named in the first line, or a dash. The names of settings are those of the launch command.
"""

from collections.abc import Mapping
from dataclasses import dataclass

BASELINES = "fedavg feddf dense co-boosting fedcvae-ens"
VARIANTS = "fedmho fedmho-md fedmho-sd"


@dataclass(frozen=True)
class Published:
    """A figure as printed, in percent."""

    mean: float
    spread: float | None = None
    """None where none is printed."""


TABLE_3 = f"""
dataset alpha : {BASELINES} {VARIANTS}
mnist 0.5 : 85.91±0.57 88.73±1.29 90.51±2.39 91.42±1.44 92.61±0.25 93.45±0.65 95.71±0.68 95.67±0.47
mnist 0.3 : 74.57±0.73 78.46±0.91 86.12±1.01 89.27±0.48 91.37±0.65 92.43±0.42 93.98±0.69 94.25±0.18
mnist 0.1 : 49.12±2.99 62.58±4.50 73.76±1.72 81.30±0.54 89.73±0.40 88.48±0.99 91.22±0.56 91.55±0.27
fmnist 0.5 : 60.24±1.47 65.66±1.36 72.29±2.63 72.98±1.61 69.11±1.35 75.30±0.62 77.27±0.48 77.73±0.59
fmnist 0.3 : 47.36±0.21 59.21±2.20 68.14±0.97 69.50±0.64 68.39±0.49 72.36±0.92 75.69±0.93 76.45±0.53
fmnist 0.1 : 30.37±0.79 42.21±2.80 56.12±3.94 61.73±1.36 64.01±2.47 62.14±1.45 71.04±0.50 69.65±0.99
svhn 0.5 : 60.73±1.91 72.23±1.32 77.61±1.44 77.84±0.42 67.66±0.46 82.27±0.89 85.16±0.73 84.60±0.71
svhn 0.3 : 50.97±3.21 70.77±1.05 71.98±1.87 74.35±1.08 66.23±0.42 80.13±0.72 84.02±0.46 83.11±0.06
svhn 0.1 : 37.91±3.94 55.39±2.68 57.31±1.37 63.22±0.71 64.41±0.19 77.46±0.54 81.09±0.56 80.53±0.30
emnist 0.5 : 61.65±1.50 64.52±1.40 68.13±0.48 68.90±0.28 72.33±1.23 75.73±0.45 78.45±0.27 77.79±0.45
emnist 0.3 : 57.37±1.49 62.08±0.52 63.54±0.66 66.16±0.37 69.07±0.72 72.63±0.36 74.81±0.56 75.36±0.51
emnist 0.1 : 39.69±3.18 45.09±2.52 49.07±1.45 58.74±0.72 66.26±1.21 70.85±0.85 73.23±0.86 73.44±0.78
"""

TABLE_4 = """
dataset alpha : fedmho-md fedmho-sd
mnist 0.5 : 94.45±0.42 94.70±0.38
mnist 0.3 : 92.33±0.23 93.17±0.32
mnist 0.1 : 90.66±0.31 90.33±0.86
fmnist 0.5 : 74.56±1.02 75.11±1.93
fmnist 0.3 : 73.15±0.52 74.12±2.40
fmnist 0.1 : 65.13±0.91 65.42±3.68
svhn 0.5 : 84.63±0.72 84.11±0.93
svhn 0.3 : 83.23±1.09 82.54±0.32
svhn 0.1 : 80.27±0.86 79.82±1.15
emnist 0.5 : 76.79±0.18 76.86±0.33
emnist 0.3 : 74.33±0.68 74.89±0.47
emnist 0.1 : 72.81±0.40 72.84±0.51
"""

TABLE_5 = """
dataset num-clients : dense co-boosting fedcvae-ens fedmho fedmho-md fedmho-sd
emnist 6 : 72.96±0.25 73.50±0.38 75.29±0.54 76.03±0.28 78.69±0.15 78.12±0.21
emnist 12 : 67.88±0.45 68.05±0.24 72.65±0.52 75.23±0.52 78.16±0.30 77.45±0.14
emnist 20 : 65.73±0.69 65.46±0.48 71.24±0.83 74.01±0.65 76.55±0.56 75.94±0.38
"""

TABLE_6 = """
dataset alpha keep : fedmho-md fedmho-sd
emnist 0.5 0.4 : 77.58±0.55 77.29±0.62
emnist 0.5 0.6 : 78.04±0.44 77.41±0.30
emnist 0.5 0.9 : 78.12±0.34 77.75±0.26
emnist 0.3 0.4 : 74.37±0.83 75.06±0.52
emnist 0.3 0.6 : 74.60±0.64 75.14±0.56
emnist 0.3 0.9 : 74.78±0.47 75.12±0.38
emnist 0.1 0.4 : 72.99±0.95 73.06±0.61
emnist 0.1 0.6 : 73.20±0.67 73.11±0.54
emnist 0.1 0.9 : 73.15±0.31 73.29±0.62
"""

LOSS_WEIGHTS = """
dataset alpha betas : fedmho-md fedmho-sd
emnist 0.5 1,1 : 78.45±0.27 77.79±0.45
emnist 0.3 1,1 : 74.81±0.56 75.36±0.51
emnist 0.1 1,1 : 73.23±0.86 73.44±0.78
emnist 0.5 1,2 : 77.86±0.35 77.34±0.47
emnist 0.3 1,2 : 74.44±0.42 75.03±0.63
emnist 0.1 1,2 : 72.80±0.69 73.15±0.39
emnist 0.5 2,1 : 78.18±0.14 77.65±0.56
emnist 0.3 2,1 : 74.69±0.45 75.22±0.66
emnist 0.1 2,1 : 73.24±0.48 73.38±0.73
emnist 0.5 learned : 78.36±0.33 77.85±0.40
emnist 0.3 learned : 75.06±0.60 75.18±0.64
emnist 0.1 learned : 73.18±0.42 73.21±0.43
"""

TABLE_8 = f"""
dataset alpha : {BASELINES}
mnist 0.5 : 88.44±1.08 91.13±0.25 93.56±0.74 93.61±0.72 94.14±0.61
mnist 0.3 : 79.96±1.67 86.00±0.64 91.63±0.44 91.95±0.37 93.72±0.35
mnist 0.1 : 56.67±2.38 78.06±1.01 74.99±0.29 82.34±0.42 93.01±0.63
fmnist 0.5 : 67.13±1.43 68.63±0.78 80.59±1.34 80.82±0.71 76.18±0.54
fmnist 0.3 : 54.16±1.22 62.70±1.31 67.18±1.69 69.11±0.86 74.90±0.72
fmnist 0.1 : 38.39±1.85 51.10±1.98 49.26±0.84 55.60±0.76 74.11±1.46
svhn 0.5 : 64.14±0.87 75.33±0.97 79.99±0.53 79.56±0.44 85.02±0.45
svhn 0.3 : 56.62±1.75 73.04±0.80 73.69±0.77 74.08±0.51 83.82±0.60
svhn 0.1 : 45.89±2.34 59.72±1.25 65.16±1.60 69.24±0.64 83.71±0.49
emnist 0.5 : 68.55±1.46 71.07±0.90 80.84±1.16 81.13±0.65 77.67±0.78
emnist 0.3 : 62.03±0.71 66.81±1.11 75.45±1.93 75.96±0.85 76.48±0.34
emnist 0.1 : 44.16±0.56 49.13±1.07 64.98±2.68 68.39±1.06 74.55±0.14
"""

TABLE_9 = f"""
dataset alpha : {BASELINES} {VARIANTS}
emnist 0.5 : 62.38±2.03 68.49±0.84 72.57±0.36 72.81±0.48 73.12±1.12 78.16±0.50 79.89±0.55 80.38±0.24
emnist 0.3 : 50.71±2.43 61.65±0.91 70.53±0.72 71.14±0.53 68.38±1.55 72.19±1.47 75.76±1.17 75.44±0.98
emnist 0.1 : 33.07±1.57 48.98±1.68 55.76±1.35 58.23±0.69 66.03±2.34 62.04±1.73 68.22±1.35 67.19±1.08
"""

TABLE_XI = """
dataset alpha generator.epochs : fedmho-md fedmho-sd
emnist 0.5 10 : 67.55 67.48
emnist 0.5 20 : 74.93 74.61
emnist 0.5 30 : 77.14 76.40
emnist 0.5 40 : 77.75 77.18
emnist 0.5 50 : 78.45 77.79
"""
FEDAF = """
dataset alpha : fedavg fedprox fedbn moon feddyn fedgen feddm fedaf-without-cdc fedaf-without-lgkm fedaf
fmnist 0.02 : 56.50±5.55 60.38±5.00 58.26±4.28 51.33±7.00 69.79±5.04 61.44±2.07 85.36±0.96 - - 87.53±0.32
fmnist 0.05 : 69.14±5.84 69.33±4.12 72.91±4.69 71.41±4.08 75.19±5.49 75.48±1.83 86.08±0.68 - - 87.29±0.23
fmnist 0.1 : 82.19±5.67 81.56±4.52 77.33±3.07 81.61±2.68 84.73±2.74 82.29±2.53 86.65±0.31 - - 87.91±0.41
cifar10 0.02 : 39.71±1.15 36.46±5.39 36.53±2.52 33.32±1.13 45.73±3.98 36.61±1.06 60.28±0.82 64.16±0.83 64.12±0.85 65.15±0.86
cifar10 0.05 : 46.51±3.07 45.83±2.23 45.13±2.18 47.41±4.59 57.68±1.84 42.72±2.11 62.97±0.96 65.88±0.93 66.27±1.31 67.50±0.76
cifar10 0.1 : 56.15±4.62 58.54±1.87 57.67±3.21 57.62±4.99 59.97±2.20 58.17±2.84 64.88±0.35 67.90±0.53 68.14±0.81 69.11±0.86
cifar100 0.02 : 30.80±2.20 30.82±0.80 29.73±1.73 33.41±0.70 35.01±2.07 29.20±2.09 44.15±0.30 - - 48.71±0.33
cifar100 0.05 : 33.37±0.75 36.61±1.44 33.73±2.15 37.90±0.80 39.10±0.34 33.56±3.91 46.27±0.98 - - 49.49±0.33
cifar100 0.1 : 39.97±1.53 40.45±1.53 39.84±0.20 40.24±0.68 41.81±1.46 40.23±1.06 47.05±0.13 - - 50.61±0.26
"""
"""FedAF's Tables 1 and 4, with the ConvNet: each run's best of 20 rounds by the test split."""

FEDAF_6 = """
dataset alpha : fedavg fedprox fedbn moon feddyn fedgen feddm fedaf
cifar10 0.02 : 26.48±0.58 26.86±2.69 27.00±2.49 29.59±3.57 22.67±1.54 26.63±2.07 39.18±0.29 41.10±0.50
cifar10 0.05 : 32.72±2.47 32.73±2.45 30.29±3.38 33.11±3.74 29.89±4.48 32.48±3.04 39.47±0.66 41.40±0.66
cifar10 0.1 : 35.85±3.73 36.25±2.96 35.48±3.45 37.26±2.66 35.38±1.56 38.85±2.00 40.83±0.67 42.93±0.29
"""
"""FedAF's Table 6, with ResNet-18."""

DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
FEDAF_2: Mapping[str, tuple[float, ...]] = {
    "fedavg": (43.03, 40.76, 59.16, 39.60, 41.03, 28.46),
    "fedprox": (44.81, 43.76, 60.22, 38.13, 41.55, 29.18),
    "fedbn-by-domain": (46.07, 34.27, 52.01, 43.10, 47.33, 29.72),
    "moon": (48.80, 37.97, 56.26, 48.07, 42.02, 29.72),
    "feddyn": (48.04, 60.03, 67.46, 37.73, 41.77, 32.67),
    "fedgen": (42.77, 37.88, 54.37, 37.33, 42.86, 25.69),
    "feddm": (52.28, 41.38, 60.58, 62.37, 52.45, 46.69),
    "fedaf": (51.20, 47.05, 62.53, 64.60, 52.64, 50.06),
}
"""FedAF's Table 2, by method: its global model's accuracy on each of DomainNet's domains."""

FID_XI = {"10": 145.71, "20": 127.91, "30": 110.65, "40": 102.51, "50": 100.01}
"""Table XI's FIDs, by the CVAE's epochs. The paper does not name the network behind them."""


@dataclass(frozen=True)
class PublishedRow:
    """A row of a table: settings by their names on the command line, and a figure per method."""

    dataset: str
    settings: Mapping[str, str]
    figures: Mapping[str, Published | None]
    """None where the paper prints no number."""

    @property
    def name(self) -> str:
        """Data set and settings in one word."""
        return "-".join([self.dataset, *(f"{n}{v}" for n, v in self.settings.items())])


def rows(table: str) -> list[PublishedRow]:
    """The table's rows, in order."""
    (names, methods), *lines = (
        [part.split() for part in line.split(":")] for line in table.strip().splitlines()
    )
    return [
        PublishedRow(
            dataset,
            dict(zip(names[1:], values, strict=True)),
            {
                method: None if figure == "-" else Published(*map(float, figure.split("±")))
                for method, figure in zip(methods, figures, strict=True)
            },
        )
        for (dataset, *values), figures in lines
    ]
