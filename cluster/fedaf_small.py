"""``python -m cluster.suite fedaf-small``: FedAF's comparison over rounds, on MNIST for two cores.

Its paper has no MNIST, so no figure of its stands beside ours: what is compared is the order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from cluster.run_dir import write_json
from cluster.store import write_atomically
from fl.errors import UserError
from fl.report import style
from fl.report.compare import COLOURS

ALPHAS = ("0.02", "0.05", "0.1")
METHODS = {
    "fedaf": ("--method=fedaf",),
    "fedaf-without-cdc": ("--method=fedaf", "--collaboration=0"),
    "fedaf-without-lgkm": ("--method=fedaf", "--knowledge=0"),
    "feddm": ("--method=feddm",),
    "fedavg": ("--method=fedavg",),
    "fedprox": ("--method=fedprox", "--classifier.proximal=0.001"),
}
"""The arguments of each line; FedProx with the mu of FedAF's paper."""
Results = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Line:
    """A method at one alpha, once per seed."""

    alpha: str
    method: str

    @property
    def name(self) -> str:
        """What ``--only`` picks it by, and a part of its runs' names."""
        return f"alpha{self.alpha}-{self.method}"

    def arguments(self, seed: int, where: Sequence[str]) -> list[str]:
        """Of the launch command."""
        own = [f"--seed={seed}", f"--name=fedaf-small-{self.name}-seed{seed}", "--resume"]
        fixed = ["--preset=fedaf-mnist-small", f"--alpha={self.alpha}"]
        return [*fixed, *METHODS[self.method], *where, *own]


def lines(only: Sequence[str]) -> list[Line]:
    """All lines, or those whose name fits one of the patterns."""
    every = [Line(alpha, method) for alpha in ALPHAS for method in METHODS]
    chosen = [w for w in every if not only or any(fnmatch(w.name, p) for p in only)]
    if not chosen:
        raise UserError(f"--only fits no cell of fedaf-small; e.g. {every[0].name}")
    return chosen


def runs(
    seeds: Sequence[int], only: Sequence[str], where: Sequence[str]
) -> dict[tuple[Line, int], list[str]]:
    """The arguments of every line's run with every seed."""
    return {(line, seed): line.arguments(seed, where) for line in lines(only) for seed in seeds}


def show(found: Mapping[Line, Results], seeds: Sequence[int], output_dir: Path) -> None:
    """Prints and keeps the table, and a picture of the curves for each alpha."""
    table = as_markdown(found, seeds)
    write_atomically(output_dir / "fedaf-small.md", table.encode())
    curves = {line.name: [r["accuracy_curve"] for r in results] for line, results in found.items()}
    write_json(output_dir / "fedaf-small.json", {"seeds": list(seeds), "curves": curves})
    print(f"\n{table}\ntable    {output_dir / 'fedaf-small.md'}")
    for alpha in dict.fromkeys(line.alpha for line in found):
        own = {line.method: results for line, results in found.items() if line.alpha == alpha}
        picture = output_dir / f"fedaf-small-alpha{alpha}.png"
        write_atomically(picture, style.png(draw_curves(own)))
        print(f"curves   {picture}")


def as_markdown(found: Mapping[Line, Results], seeds: Sequence[int]) -> str:
    """Accuracies after the last round and in the best one, means over seeds with their spread."""
    rows = [
        f"| {line.alpha} | {line.method} | {_shown([r['accuracy'] for r in results])} "
        f"| {_shown([r['best_accuracy'] for r in results])} "
        f"| {mean(r['bytes_up'] for r in results) / 2**20:.2f} |"
        for line, results in found.items()
    ]
    return "\n".join(
        [
            f"# FedAF and others over rounds on MNIST, small, seeds {', '.join(map(str, seeds))}",
            "",
            "| Alpha | Method | Last round, % | Best round, % | MiB up |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def draw_curves(found: Mapping[str, Results]) -> Figure:
    """Mean test accuracy after each round, a line per method, with the seeds' range around it."""
    figure, axes = style.new_axes(style.WIDE, 4.2)
    for colour, (method, results) in zip(COLOURS, found.items(), strict=False):
        rounds = list(zip(*(r["accuracy_curve"] for r in results), strict=True))
        numbers = range(1, len(rounds) + 1)
        axes.plot(numbers, [mean(r) for r in rounds], color=colour, linewidth=2, label=method)
        lowest, highest = [min(r) for r in rounds], [max(r) for r in rounds]
        axes.fill_between(numbers, lowest, highest, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel="test accuracy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(frameon=False, fontsize=style.TICK, labelcolor=style.INK)
    return figure


def _shown(accuracies: Sequence[float]) -> str:
    spread = f" ± {100 * stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"{100 * mean(accuracies):.2f}{spread}"
