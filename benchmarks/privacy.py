"""Accuracy, and what membership inference finds, over the budget of differential privacy.

    python benchmarks/privacy.py --json FILE --output FILE.png

Six clients on the digits, cut iid, one round, in this process; each run is attacked as `onefold
privacy` does it. FedMHO has three classifiers and three generators, FedAvg six classifiers.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isinf
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import robust
import torch
import tyro
from machine import Rows, here_and_now
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from robust import NoStore, Size, members_of, played, settings

from fl.clients import Clients
from fl.data.datasets import Dataset, load
from fl.data.partition import PartitionConfig, make_partition
from fl.errors import UserError
from fl.events import Events
from fl.exchange import Tensors, Upload
from fl.executor import InProcess
from fl.federation import RunSpec, Training
from fl.json_files import JsonObject
from fl.methods.registry import get_method
from fl.privacy import Subject, measure
from fl.report.style import MUTED, WIDE, legend_above, quiet
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from fl.training.private import DpConfig, PrivateClassifier, PrivateGenerator, private

Name = Literal["fedavg", "fedmho"]
COLOURS = {"fedavg": "#0072b2", "fedmho": "#d55e00"}
LINES = {"loss": "--", "ratio": "-"}
"""The attacks, each with its line."""
ONE_PERCENT = "0.01"
"""The false positive rate at which true positives are told."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is compared, and how large it is."""

    methods: tuple[Name, ...] = ("fedavg", "fedmho")
    """Methods to compare."""
    epsilons: tuple[float, ...] = (inf, 8.0, 3.0, 1.0)
    """Budgets of each client; inf: without differential privacy."""
    seed: int = 0
    """Seed of all runs."""
    quick: bool = False
    """A tiny form that shows only that everything runs."""
    json: Path | None = None
    """Also write the figures here."""
    output: Path | None = None
    """Also draw them here, as PNG."""


BATCH = 64
"""Of all trainings: DP-SGD's noise on a mean gradient falls with it."""
SIZE = Size(
    clients=6,
    classifier=ClassifierConfig(model="cnn", width=0.5, epochs=20, lr=0.05, batch_size=BATCH),
    generator=GeneratorConfig(epochs=20, batch_size=BATCH),
)
QUICK = replace(robust.QUICK, clients=6, train=120, test=40)


class Kept(NoStore):
    """Keeps what each client uploaded."""

    def __init__(self) -> None:
        self.uploads: dict[int, Tensors] = {}

    def put(self, key: str, client: int, upload: Upload) -> None:
        """See :class:`fl.federation.UpdateStore`."""
        self.uploads[client] = dict(upload)


@dataclass(frozen=True)
class Row:
    """One attack's findings in one run. A method's runs differ in epsilon alone."""

    method: str
    epsilon: float
    attack: str
    accuracy: float
    model: float
    """AUC against the global model."""
    uploads: list[float]
    """AUC against each classifier that was uploaded."""
    found: float
    """True positives at 1 % false positives, the uploads' mean."""
    error: float
    """Standard error of the AUC against one upload, the largest."""


def main(options: Options) -> int:
    """Makes and attacks all runs, prints a table, and writes what was asked for."""
    torch.set_num_threads(1)
    size = QUICK if options.quick else SIZE
    data = load("digits", Path(), max_train=size.train, max_test=size.test)
    told, rows = Rows("privacy", options.json), list[Row]()
    for name in options.methods:
        for epsilon in options.epsilons:
            for row in attacked(name, epsilon, size, data, options.seed):
                told.add(seed=options.seed, **{**asdict(row), "epsilon": named(row.epsilon)})
                rows.append(row)
    Console(width=80).print(table_of(rows))
    error = max(row.error for row in rows)
    print(f"{here_and_now()}\nStandard error of an upload's AUC: up to {error:.3f}")
    if options.output:
        drawing(rows, options.epsilons).savefig(
            options.output, format="png", dpi=78, metadata={"Software": None}
        )
    return 0


def attacked(name: Name, epsilon: float, size: Size, data: Dataset, seed: int) -> list[Row]:
    """A row for each attack on one run."""
    method, run_spec = get_method(name), RunSpec.of_images((1, 28, 28), num_classes=10, seed=seed)
    config = settings(method, size)
    cut = make_partition(
        data.train.labels, size.clients, 10, PartitionConfig(kind="iid"), alpha=1.0, seed=seed
    )
    members = members_of(method, config, cut.train, run_spec)
    trainings = [trained_by(m.training, epsilon, m.num_samples, run_spec) for m in members]
    members = [replace(m, training=t) for m, t in zip(members, trainings, strict=True)]
    store = Kept()
    clients = Clients(members, cut.train, run_spec, InProcess(data.train), store, Events())
    outcome = played(method, config, clients, data)
    subject = Subject(data, cut.train, trainings, store.uploads, run_spec, outcome.model)
    return rows_of(name, epsilon, outcome.epochs[-1].accuracy, measure(subject))


def trained_by(training: Training, epsilon: float, samples: int, run_spec: RunSpec) -> Training:
    """The record of a client with this budget and so many samples."""
    if isinf(epsilon):
        return training
    record = private(training, DpConfig(epsilon=epsilon, noise_from_seed=True), 1, run_spec)
    assert isinstance(record, PrivateClassifier | PrivateGenerator)
    return record.for_samples(samples)


def rows_of(name: Name, epsilon: float, accuracy: float, found: JsonObject) -> list[Row]:
    """A row for each attack of what `onefold privacy` found."""
    rows = []
    for attack, curve in found["global"]["attacks"].items():
        uploads = [upload["attacks"][attack] for upload in found["uploads"]]
        rows.append(
            Row(
                method=name,
                epsilon=epsilon,
                attack=attack,
                accuracy=accuracy,
                model=curve["auc"],
                uploads=[upload["auc"] for upload in uploads],
                found=mean(upload["at"][ONE_PERCENT]["value"] for upload in uploads),
                error=max(upload["error"] for upload in uploads),
            )
        )
    return rows


def named(epsilon: float) -> str:
    """As tables and figures have it."""
    return f"{epsilon:g}"


def table_of(rows: Sequence[Row]) -> Table:
    """A row for each run and attack."""
    table = Table(
        *("method", "epsilon", "accuracy", "attack", "global", "mean", "highest", "TPR"),
        title="AUC on the global model and on uploads; TPR of uploads at 1 % FPR",
    )
    previous: tuple[str, ...] = ()
    for row in rows:
        run = (row.method, named(row.epsilon), f"{row.accuracy:.3f}")
        figures = (row.model, mean(row.uploads), max(row.uploads), row.found)
        shown = ("", "", "") if run == previous else run
        table.add_row(*shown, row.attack, *(f"{figure:.3f}" for figure in figures))
        previous = run
    return table


def drawing(rows: Sequence[Row], epsilons: Sequence[float]) -> Figure:
    """Accuracy, and the uploads' mean AUC, over epsilon: a log scale with inf at its end."""
    figure = Figure(figsize=(WIDE, 3.4), facecolor="white", layout="constrained")
    accuracy, area = figure.subplots(1, 2)
    places = along(epsilons)
    for axes, about in ((accuracy, "accuracy"), (area, "mean AUC of the uploads")):
        quiet(axes)
        axes.set(xscale="log", xlabel="epsilon of each client", ylabel=about)
        axes.set_xticks([*places.values()], labels=[named(epsilon) for epsilon in places])
        axes.minorticks_off()
    accuracy.set_ylim(0, 1)
    area.axhline(0.5, color=MUTED, linewidth=1, linestyle=":")
    for name, attack in dict.fromkeys((row.method, row.attack) for row in rows):
        own = [row for row in rows if (row.method, row.attack) == (name, attack)]
        at = [places[row.epsilon] for row in own]
        look: Any = {"color": COLOURS[name], "marker": "o", "markersize": 4, "linewidth": 1.4}
        if attack == "loss":  # both attacks are on the same runs
            accuracy.plot(at, [row.accuracy for row in own], label=name, **look)
        told = {"label": f"{name}, {attack}", "linestyle": LINES[attack]}
        area.plot(at, [mean(row.uploads) for row in own], **told, **look)
    legend_above(accuracy, columns=2)
    legend_above(area, columns=2)
    return figure


def along(epsilons: Sequence[float]) -> dict[float, float]:
    """Where each epsilon lies on the axis: inf beyond the largest finite one."""
    largest = max((epsilon for epsilon in epsilons if not isinf(epsilon)), default=1.0)
    return {e: 3 * largest if isinf(e) else e for e in sorted(epsilons)}


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Options)))
    except UserError as error:
        print(f"onefold: {error}", file=sys.stderr)
        sys.exit(2)
