"""Accuracy over the share of clients that lie, by method, attack and rule of aggregation.

    python benchmarks/robust.py --json FILE --output FILE.png

Ten clients on the digits, one round, in this process. Each client trains once honestly and once on
each kind of changed data; all cells are made of these uploads (attacks.py). Accuracies are means
over the seeds, on the test split, after the last epoch. FedMHO's liars are classifier and generator
clients in turn. Liars whose uploads are refused are dropped; where then too few clients are left
for a rule the cell has a dash.
"""

import sys
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import numpy as np
import torch
import tyro
from attacks import ATTACKS, Liars, Trained
from machine import Rows, here_and_now
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from fl.clients import Clients
from fl.data.datasets import Dataset, load
from fl.data.partition import PartitionConfig, make_partition
from fl.data.shard import Shard
from fl.errors import ClientFailed, UserError
from fl.events import Events
from fl.federation import Client, Request, RunSpec
from fl.fusion.fit import FitConfig
from fl.fusion.server import SingleServer
from fl.methods.method import Method
from fl.methods.registry import get_method
from fl.report.style import INK, LABEL, MUTED, TICK, quiet
from fl.rounds import Rounds
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig

Name = Literal["fedavg", "fedmho", "fedmho-md"]
RULES: dict[str, dict[str, Any]] = {
    name: {"aggregate": name} for name in ("mean", "median", "trimmed-mean", "krum", "norm-clip")
}
TEACHERS: dict[str, dict[str, Any]] = {
    f"{name}, agreement": {"aggregate": name, "teacher_weights": "agreement"}
    for name in ("mean", "median")
}
"""FedMHO-MD's rules beside those: the start's, with teachers weighted by agreement."""
COLOURS = {
    "mean": "#d55e00",
    "median": "#0072b2",
    "trimmed-mean": "#56b4e9",
    "krum": "#cc79a7",
    "norm-clip": "#009e73",
}
NOBODY = "none"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is compared, and how large it is."""

    methods: tuple[Name, ...] = ("fedavg", "fedmho", "fedmho-md")
    """Methods to compare."""
    shares: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4)
    """Shares of the clients that lie."""
    assumed: float = 0.2
    """Share of liars that the rules assume (aggregate_liars)."""
    alpha: float = 1.0
    """Dirichlet concentration of the clients' labels; inf: each has its share of every class."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; accuracies are means over them."""
    quick: bool = False
    """A tiny form that shows only that everything runs."""
    json: Path | None = None
    """Also write the figures here."""
    output: Path | None = None
    """Also draw them here, as PNG."""


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    clients: int = 10
    train: int | None = None
    test: int | None = None
    classifier: ClassifierConfig = ClassifierConfig(model="cnn", width=1.0, epochs=5, lr=0.02)
    generator: GeneratorConfig = GeneratorConfig(epochs=20)
    samples: int = 600
    fusion: FitConfig = FitConfig(epochs=4, lr=1e-3, batch_size=64)


QUICK = Size(
    train=200,
    test=60,
    classifier=ClassifierConfig(model="cnn", width=0.2, epochs=1, lr=0.05),
    generator=GeneratorConfig(width=0.1, latent=4, epochs=1),
    samples=40,
    fusion=FitConfig(epochs=1, lr=1e-3, batch_size=32),
)


class NoStore:
    """Stores nothing: what was trained is in :data:`attacks.Trained`."""

    def keys(self, jobs: Mapping[int, Any]) -> dict[int, str]:
        """See :class:`fl.federation.UpdateStore`."""
        return dict.fromkeys(jobs, "")

    def get(self, key: str, client: int) -> None:
        """Nothing."""

    def put(self, key: str, client: int, packed: Any) -> None:
        """Stores nothing."""

    def file(self, key: str) -> None:
        """None: updates are held in memory."""

    def locked(self, keys: Mapping[int, str]) -> AbstractContextManager[list[int]]:
        """All of them."""
        return nullcontext(list(keys))

    def end_round(self, number: int, needed: Set[str] = frozenset()) -> None:
        """Has nothing to release."""


@dataclass
class Federation:
    """One seed's data, shards, and the uploads that its clients have made so far."""

    data: Dataset
    size: Size
    seed: int
    alpha: float
    honest: Trained = field(default_factory=dict)
    poisoned: dict[str, Trained] = field(default_factory=dict)
    refused: set[tuple[str, str]] = field(default_factory=set)
    """Attacks of which uploads were refused, with the role of the client."""

    def play(
        self, method: Method, config: Any, attack: str, liars: Set[int], rounds: int = 1
    ) -> Outcome:
        """A whole run in which these clients lie; of several rounds no other may follow, as what
        clients upload in the second depends on the first."""
        labels, seed = self.data.train.labels, self.seed
        run_spec = RunSpec.of_images(self.data.image_shape, num_classes=10, seed=seed)
        kind: Any = "iid" if np.isinf(self.alpha) else "dirichlet"
        cut = make_partition(
            labels,
            self.size.clients,
            10,
            PartitionConfig(kind=kind),
            alpha=min(self.alpha, 1e6),
            seed=seed,
        )
        members = members_of(method, config, cut.train, run_spec)
        poisoned = self.poisoned.setdefault(attack, {})
        executor = Liars(self.data.train, attack, liars, self.honest, poisoned)
        clients = Clients(
            members, cut.train, run_spec, executor, NoStore(), Events(), on_failure="drop"
        )
        try:
            return played(method, config, clients, self.data, rounds)
        finally:
            self.refused |= {(attack, members[k].role) for k in clients.dropped}


def members_of(
    method: Method, config: Any, shards: Sequence[np.ndarray], run_spec: RunSpec
) -> list[Client]:
    """The method's clients, by the indices that each has."""
    return [
        Client(
            id=k,
            role=part.role,
            training=part.training,
            num_samples=len(shards[k]),
            request=Request(cpus=1, gpus=0),
        )
        for k, part in enumerate(method.assign(config, len(shards), run_spec))
    ]


def played(
    method: Method, config: Any, clients: Clients, data: Dataset, rounds: int = 1
) -> Outcome:
    """What the method comes to on these clients and a server in this process."""
    test = Shard.from_split(data.test, np.arange(len(data.test.labels)), 10)
    server = SingleServer(clients.run_spec, test, Events(), torch.device("cpu"))
    more = {} if method.one_shot else {"rounds": Rounds(rounds)}
    return method.run(clients, server, config, **more)


def main(options: Options) -> int:
    """Runs all cells, prints a table for each method, and writes what was asked for."""
    torch.set_num_threads(1)
    size = QUICK if options.quick else Size()
    data = load("digits", Path(), max_train=size.train, max_test=size.test)
    federations = [Federation(data, size, seed, options.alpha) for seed in options.seeds]
    console, rows = Console(width=80), Rows("robust", options.json)
    said, where = {n: getattr(options, n) for n in ("assumed", "seeds", "shares")}, here_and_now()
    rows.add(kind="machine", machine=where, alpha=str(options.alpha), **said)
    accuracies: dict[str, Cells] = {}
    for name in options.methods:
        accuracies[name] = compared(name, federations, options)
        rows.add(kind="method", method=name, accuracy=accuracies[name])
        console.print(table_of(name, accuracies[name], options))
        refused = {pair for federation in federations for pair in federation.refused}
        said = ", ".join(f"{attack} ({role})" for attack, role in sorted(refused))
        console.print(f"refused and dropped: {said or 'nobody'}")
    console.print(where, soft_wrap=True)
    if options.output:
        drawing(accuracies, options).savefig(
            options.output, format="png", dpi=78, metadata={"Software": None}
        )
    return 0


Cells = dict[str, dict[str, list[float | None]]]
"""Accuracies by attack and rule: one for each share of liars; None where the rule had too few
clients left."""


def compared(name: str, federations: list[Federation], options: Options) -> Cells:
    """A method's accuracies, means over the federations."""
    rules = {**RULES, **TEACHERS} if name == "fedmho-md" else RULES
    undisturbed = {
        rule: over_seeds(federations, name, rule, NOBODY, 0.0, options) for rule in rules
    }
    return {
        attack: {
            rule: [
                over_seeds(federations, name, rule, attack, share, options)
                if share
                else undisturbed[rule]
                for share in options.shares
            ]
            for rule in rules
        }
        for attack in ATTACKS
    }


def over_seeds(
    federations: list[Federation], name: str, rule: str, attack: str, share: float, options: Options
) -> float | None:
    """The mean accuracy; None where the rule had too few clients left."""
    try:
        return mean(accuracy(f, name, rule, attack, share, options) for f in federations)
    except (ClientFailed, UserError):
        return None


def accuracy(
    federation: Federation, name: str, rule: str, attack: str, share: float, options: Options
) -> float:
    """The last epoch's accuracy of one run."""
    method, size = get_method(name), federation.size
    own = {**RULES, **TEACHERS}[rule]
    config = replace(settings(method, size), **own)
    if not config.weights_clients:
        config = replace(config, aggregate_liars=options.assumed)
    outcome = federation.play(method, config, attack, liars(share, size.clients))
    return outcome.epochs[-1].accuracy


def settings(method: Method, size: Size) -> Any:
    """The method's settings of this size."""
    if method.name == "fedavg":
        return method.config(num_large=size.clients, classifier=size.classifier)
    return method.config(
        num_samples=size.samples,
        classifier=size.classifier,
        generator=size.generator,
        fusion=size.fusion,
    )


def liars(share: float, clients: int) -> frozenset[int]:
    """Who lies: of the first half of the clients and of the second in turn."""
    half = clients // 2
    in_turn = [k for pair in zip(range(half), range(half, clients), strict=False) for k in pair]
    return frozenset(in_turn[: round(share * clients)])


def table_of(name: str, cells: Cells, options: Options) -> Table:
    """A row for each attack and rule; the best rule of a column is bold."""
    shares = [f"{share:.0%}" for share in options.shares]
    table = Table("attack", "rule", *shares, title=f"{name}: accuracy by share of liars")
    for attack, rows in cells.items():
        best = [max(v or 0.0 for v in column) for column in zip(*rows.values(), strict=True)]
        for i, (rule, values) in enumerate(rows.items()):
            told = [
                "-"
                if value is None
                else f"[bold]{value:.3f}[/bold]"
                if value == top
                else f"{value:.3f}"
                for value, top in zip(values, best, strict=True)
            ]
            table.add_row("" if i else attack, rule, *told, end_section=i == len(rows) - 1)
    return table


def drawing(accuracies: dict[str, Cells], options: Options) -> Figure:
    """A row of panels for each method, a column for each attack, a line for each rule."""
    figure = Figure(
        figsize=(13.6, 0.7 + 2 * len(accuracies)), facecolor="white", layout="constrained"
    )
    panels = figure.subplots(len(accuracies), len(ATTACKS), sharex=True, sharey=True, squeeze=False)
    for row, (name, cells) in zip(panels, accuracies.items(), strict=True):
        row[0].set_ylabel(f"{name}\naccuracy")
        for axes, (attack, rows) in zip(row, cells.items(), strict=True):
            quiet(axes)
            axes.set_ylim(0, 1)
            if axes in panels[0]:
                axes.set_title(attack, fontsize=LABEL, color=INK)
            if axes in panels[-1]:
                axes.set_xlabel("share of liars")
            axes.axvline(options.assumed, color=MUTED, linewidth=0.6, linestyle=":")
            for rule, values in rows.items():
                start, _, agreed = rule.partition(", ")
                look = {"color": COLOURS[start], "linestyle": "--" if agreed else "-"}
                drawn = [np.nan if value is None else value for value in values]
                axes.plot(options.shares, drawn, label=rule, linewidth=1.4, **look)
    lines = panels[-1][0].get_lines()[1:]
    figure.legend(handles=lines, loc="outside upper left", ncols=5, frameon=False, fontsize=TICK)
    return figure


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
