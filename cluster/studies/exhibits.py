"""The papers' figures, drawn from their runs; and which tables state their numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from statistics import mean
from typing import Any

import numpy as np
from cycler import cycler
from matplotlib import figure as drawn
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from cluster.studies.comparison import NOTHING, Figure, metric_name, published, shown, spread, table
from fl.json_files import SettingValues
from fl.report import style
from fl.report.words import within_a_line

# What the papers' figures show, as tables of numbers, in addition to the table of accuracies.

MIB = 2**20
TARGETS = range(10, 100, 5)
"""Accuracies in percent, of which FedMHO's Figure 5 shows those that some method reaches."""
LEVELS = (50, 60, 70, 80, 90, 95)
"""Accuracies in percent, of HFLDD's Figure 6, which names none."""

Amount = Callable[[Figure, float], float | None]
"""What a cell needed until an accuracy (0 to 1) was first reached, mean over seeds; None where a
seed never reaches it."""
Describe = Callable[[Sequence[Figure]], list[str]]
"""The lines of a table, with what it is about above it."""


def epochs_to_target(figure: Figure, target: float) -> float | None:
    """Epochs at the server; 0 where the start is as good already."""
    reached = [(run, _first(_curve(run), target)) for run in figure.results]
    there = [_steps(run)[place] for run, place in reached if place is not None]
    return mean(there) if len(there) == len(reached) else None


def until(figure: Figure, target: float) -> tuple[float, ...] | None:
    """Rounds and MiB until the accuracy is first reached, mean over seeds.

    None where a seed never reaches it, or the method has no rounds.
    """
    needed = []
    for run in figure.results:
        rounds = run.get("per_round", [])
        last = _first([r["accuracy"] for r in rounds], target)
        if last is None:
            return None
        parts = ("bytes_up", "bytes_down", "bytes_peer")
        sent = sum(r.get(part, 0) for r in rounds[: last + 1] for part in parts)
        needed.append((rounds[last]["round"], sent / MIB))
    return tuple(map(mean, zip(*needed, strict=True)))


def mib_until(figure: Figure, target: float) -> float | None:
    """The MiB of :func:`until`."""
    reached = until(figure, target)
    return reached[1] if reached else None


def _first(accuracies: Sequence[float], target: float) -> int | None:
    """At which place one is first high enough."""
    return next((n for n, accuracy in enumerate(accuracies) if accuracy >= target), None)


def _curve(run: SettingValues) -> list[float]:
    """A run's accuracies, its start before them."""
    return [run["start_accuracy"], *run["accuracy_curve"]]


def _steps(run: SettingValues) -> list[int]:
    """The epochs or rounds of its accuracies; a fit may have tested only some."""
    return [0, *run.get("curve_epochs", range(1, 1 + len(run["accuracy_curve"])))]


def curves(figure: Figure) -> np.ndarray:
    """Accuracy, 0 to 1, by seed and tested epoch or round, as far as all seeds have it; first the
    start's."""
    return np.array(list(zip(*map(_curve, figure.results), strict=False))).T


Columns = Mapping[str, str]


def _described(
    about: str,
) -> Callable[[Callable[[Figure, Sequence[Figure]], Columns | None]], Describe]:
    """Makes a table of a function that describes one cell, among all, by column; a cell of which it
    gives None has no line."""

    def decorated(cells: Callable[[Figure, Sequence[Figure]], Columns | None]) -> Describe:
        def describe(figures: Sequence[Figure]) -> list[str]:
            found = [(figure.cell, cells(figure, figures)) for figure in figures]
            rows = [
                {"Row": c.row, "Method": c.method, **own} for c, own in found if own is not None
            ]
            return [about, "", *table(rows)] if rows else []

        return wraps(cells)(describe)

    return decorated


def _levels(figure: Figure, levels: Sequence[int], amount: Amount, spelled: str) -> Columns:
    """A column for each accuracy in percent that the cell reaches: the first of ``levels``."""
    found = over_levels(amount, levels, [figure])
    return {f"{level} %": spelled.format(value) for level, (value,) in found}


@_described("Epochs at the server until an accuracy is reached by every seed, mean over seeds:")
def describe_targets(figure: Figure, figures: Sequence[Figure]) -> Columns:
    """A column per target that some method reaches."""
    return _levels(figure, TARGETS, epochs_to_target, "{:.1f}")


@_described("MiB (up, down and between clients) until every seed has an accuracy, mean over seeds:")
def describe_traffic(figure: Figure, figures: Sequence[Figure]) -> Columns:
    """HFLDD's Figure 6: a column for each accuracy that some method has."""
    return _levels(figure, LEVELS, mib_until, "{:.2f}")


@_described("Mean curve over seeds, in percent; a fall after the best epoch is forgetting:")
def describe_forgetting(figure: Figure, figures: Sequence[Figure]) -> Columns:
    """Start, peak and end of the mean curve, and the fall from peak to end."""
    curve = 100 * curves(figure).mean(axis=0)
    best, epochs = int(curve.argmax()), _steps(figure.results[0])
    found = {"Start": f"{curve[0]:.2f}", "Best": f"{curve[best]:.2f}", "Epoch": str(epochs[best])}
    return found | {"Last": f"{curve[-1]:.2f}", "Fall": f"{curve[best] - curve[-1]:.2f}"}


@_described(
    "The best round is chosen by the test split, as FedAF's paper does; what is in the table "
    "above is the last one:"
)
def describe_rounds(figure: Figure, figures: Sequence[Figure]) -> Columns:
    """The best round beside the last one, and bytes: FedAF's paper prints the best."""
    return {
        "Last round, %": str(figure),
        "Best round, %": shown([100 * result["best_accuracy"] for result in figure.results]),
        "Paper's best": str(figure.cell.paper or NOTHING),
        "MiB up": _mib_up(figure),
    }


def describe_domains(figures: Sequence[Figure]) -> list[str]:
    """A column per domain, and their plain mean; the paper's below where the domains are its."""
    domains = list(figures[0].results[0]["per_domain_accuracy"])
    papers = published()["fedaf-table2"]
    rows = []
    for figure in figures:
        found = [[100 * run["per_domain_accuracy"][d] for d in domains] for run in figure.results]
        by_domain = dict(zip(domains, map(shown, zip(*found, strict=True)), strict=True))
        rows.append({"Method": figure.cell.method, **by_domain, "Mean": shown([*map(mean, found)])})
        if domains == papers["domains"] and figure.cell.method in papers["methods"]:
            printed = papers["methods"][figure.cell.method]
            theirs = zip([*domains, "Mean"], [*printed, mean(printed)], strict=True)
            rows.append({"Method": "paper"} | {name: f"{value:.2f}" for name, value in theirs})
    return [
        "Accuracy on each domain after the last round, in percent, and their plain mean (in the "
        "table above a domain counts by its samples):",
        "",
        *table(rows),
    ]


@_described(
    "After the last round, in percent over clients; below alone: clients that method local, of "
    "the same row and seed, leaves with a higher accuracy:"
)
def describe_clients(figure: Figure, figures: Sequence[Figure]) -> Columns:
    """How the clients' accuracies lie beside their mean, who is better off alone, and bytes: also
    over what FedAvg's clients would have sent in the same rounds."""
    found = {"Mean": "mean", "Spread": "spread", "Worst tenth": "worst_tenth"}
    runs = figure.results
    points = {n: 100 * mean(run["client_scores"][key] for run in runs) for n, key in found.items()}
    cells = {name: f"{value:.2f}" for name, value in points.items()}
    cells |= {"Below alone": _below_alone(figure, figures), "MiB up": _mib_up(figure)}
    if "fedavg_bytes_up" in runs[0]:
        cells["x FedAvg"] = f"{mean(run['bytes_up'] / run['fedavg_bytes_up'] for run in runs):.2f}"
    return cells


def _below_alone(figure: Figure, figures: Sequence[Figure]) -> str:
    """Clients of all seeds whose accuracy is lower than alone, of those that were scored."""
    alone = _beside(figure, figures, "local")
    if alone is None or alone is figure:
        return NOTHING
    by_seed = {run["seed"]: run["client_accuracy"] for run in alone.results}
    pairs = [
        pair
        for ours in figure.results
        if ours["seed"] in by_seed  # the other runs of that seed failed
        for pair in zip(ours["client_accuracy"], by_seed[ours["seed"]], strict=True)
        if None not in pair
    ]
    return f"{sum(own < other for own, other in pairs)} of {len(pairs)}"


def _beside(figure: Figure, figures: Sequence[Figure], method: str) -> Figure | None:
    """The method's cell in the same row."""
    name = f"{figure.cell.row}-{method}"
    return next((other for other in figures if other.cell.name == name), None)


def _mib_up(figure: Figure) -> str:
    return f"{mean(result['bytes_up'] for result in figure.results) / MIB:.2f}"


def describe_fid(figures: Sequence[Figure]) -> list[str]:
    """A line per number of CVAE epochs, between the two ends of the scale."""
    first, printed = figures[0].results[0]["fid"], published()["fid-distances"]
    rows = [("Gaussian noise", f"{first['noise']:.4g}", "360.53")]
    for figure in {f.cell.row: f for f in figures}.values():  # the variants share their samples
        epochs = dict(figure.cell.settings)["generator.epochs"]
        paper = printed.get(epochs, NOTHING) if figure.cell.paper else NOTHING
        distances = [result["fid"]["kept"] for result in figure.results]
        found = f"{mean(distances):.4g}"  # significant digits, since any scale is possible
        found += f" ± {spread(distances):.2g}" if len(distances) > 1 else ""
        rows.append((f"{epochs} epochs", found, str(paper)))
    rows.append(("real, two halves", f"{first['real']:.4g}", "0.000002"))
    return [
        f"Fréchet distance to the real training images: {first['features']}. The paper names no "
        "network: its distances are on another scale, and only their order can be compared.",
        "",
        *table([dict(zip(("Images", "Distance", "Paper"), row, strict=True)) for row in rows]),
    ]


def describe_hfldd(figures: Sequence[Figure]) -> list[str]:
    """Traffic until the paper's targets and others, and what members sent."""
    parts = [
        describe(figures)
        for describe in (describe_targets_of_tables, describe_traffic, describe_sent)
    ]
    return [line for part in parts if part for line in (*part, "")][:-1]


@_described(
    "Tables II to IV, IID clients: rounds and MiB (up, down and between clients) until every "
    "seed has the target, mean over seeds. The paper's MiB are of a round more than it prints:"
)
def describe_targets_of_tables(figure: Figure, figures: Sequence[Figure]) -> Columns | None:
    """HFLDD's Tables II to IV: rounds and MiB until the data set's target, of IID clients."""
    papers = published()["hfldd-traffic"].get(figure.cell.row.partition("-")[0])
    if papers is None or dict(figure.cell.settings).get("C") != "10":
        return None
    target, base = papers["target"], _beside(figure, figures, "hfldd")
    ours = until(figure, target / 100), until(base, target / 100) if base else None
    printed = {m: (about["round"], about["mib"]) for m, about in papers["methods"].items()}
    theirs = printed.get(figure.cell.method), printed["hfldd"]  # sizes of the paper scale
    cells = [f"{target} %", *_over_hfldd(*ours, "{:.1f}"), *_over_hfldd(*theirs, "{}")]
    names = ["Target", "Rounds", "MiB", "x HFLDD", "Paper's rounds", "Paper's MiB"]
    return dict(zip([*names, "Paper's x HFLDD"], cells, strict=True))


def _over_hfldd(
    own: tuple[float, ...] | None, hfldd: tuple[float, ...] | None, rounds: str
) -> list[str]:
    """Rounds and MiB, and these over HFLDD's."""
    if own is None:
        return [NOTHING] * 3
    over = f"{own[1] / hfldd[1]:.1f}" if hfldd else NOTHING
    return [rounds.format(own[0]), f"{own[1]:.2f}", over]


@_described(
    "What members sent their heads; the distance is the root mean square one from a sent image "
    "to the nearest real one of its class at its client, of the pixels' range. First seed:"
)
def describe_sent(figure: Figure, figures: Sequence[Figure]) -> Columns | None:
    """Of HFLDD's rows: clusters, and how near to real images is what members sent."""
    result = figure.results[0]
    if "clusters" not in result or "heads" not in result:
        return None
    sizes = [len(cluster) for cluster in result["clusters"]]
    about = {"Clusters": str(len(sizes)), "Largest": str(max(sizes)), "Smallest": str(min(sizes))}
    if sent := result.get("distilled"):
        about |= {"Images": str(sent["images"]), "Steps": f"{sent['steps']:.0f}"}
        about["Distance"] = f"{sent['nearest_real']:.5f}"
    return about


# The pictures: a panel for each place, and in it a line for each method.

Line = Sequence[tuple[float | str, Sequence[float]]]
"""By x its y, a value per seed. Words for x stand at even steps."""
LOOKS = cycler(linestyle=["-", "--", ":", "-."]) * cycler(color=[f"C{n}" for n in range(10)])
CLASSES = {"1": "1 class per client", "10": "IID"}


def over_time(cells: Sequence[Figure]) -> Line:
    """Accuracy by epoch or round; the start is 0."""
    (figure,) = cells
    return list(zip(_steps(figure.results[0]), curves(figure).T.tolist(), strict=False))


def over_setting(name: str, cells: Sequence[Figure]) -> Line:
    """Accuracy by a setting."""
    return [(dict(figure.cell.settings)[name], figure.accuracies) for figure in cells]


def over_distance(cells: Sequence[Figure]) -> Line:
    """Accuracy by the distance of the samples: one point per number of CVAE epochs."""
    return [(mean(run["fid"]["kept"] for run in f.results), f.accuracies) for f in cells]


def over_levels(amount: Amount, levels: Sequence[int], cells: Sequence[Figure]) -> Line:
    """An amount by accuracy in percent; a method that never has an accuracy ends before it."""
    found = ((level, amount(cells[0], level / 100)) for level in levels)
    return [(level, [value]) for level, value in found if value is not None]


def over_traffic(cells: Sequence[Figure]) -> Line | None:
    """HFLDD's Figure 6: MiB by accuracy in percent; none of a method without rounds."""
    return over_levels(mib_until, LEVELS, cells) if "per_round" in cells[0].results[0] else None


def over_clusters(cells: Sequence[Figure]) -> Line | None:
    """HFLDD's Figure 4: how many clients each cluster has, its head among them; first seed."""
    if cells[0].cell.method != "hfldd":
        return None
    clusters = cells[0].results[0].get("clusters", [])
    return [(number, [len(cluster)]) for number, cluster in enumerate(clusters, start=1)]


def place(figure: Figure) -> str:
    """The panel that a cell is in: its data set, model if that is a setting, and partition."""
    settings = dict(figure.cell.settings)
    named = [figure.cell.row.partition("-")[0], *filter(None, [settings.get("classifier.model")])]
    if "alpha" in settings:
        return ", ".join([*named, f"Dir({settings['alpha']})"])
    if "C" in settings:
        classes = CLASSES.get(settings["C"], f"{settings['C']} classes per client")
        return ", ".join([*named, classes])
    return "a client per domain"


@dataclass(frozen=True)
class Exhibit:
    """How one of the papers' figures is drawn, and which tables state its numbers."""

    points: Callable[[Sequence[Figure]], Line | None]
    """A line, of all cells of a place and method; None where the method has none."""
    x: str
    """Label of the horizontal axis."""
    describe: Describe = lambda figures: []
    """Not given where the table of accuracies states all that the figure shows."""
    y: str = "accuracy"
    """Label of the vertical axis; accuracies, named by their metric, are shown in percent."""
    scale: str = "linear"
    """Of the vertical axis, as Matplotlib names it."""
    also: Mapping[str, "Exhibit"] = field(default_factory=dict)
    """Further pictures, by what their names end in."""
    place: Callable[[Figure], str] = place
    """The panel that a cell is in."""

    def draw(self, figures: Sequence[Figure]) -> drawn.Figure:
        """A panel for each place, a line for each method: the mean over seeds, and their range."""
        lines: dict[tuple[str, str], list[Figure]] = {}
        for figure in figures:
            lines.setdefault((self.place(figure), figure.cell.method), []).append(figure)
        places = list(dict.fromkeys(where for where, _ in lines))
        looks: Any = dict(zip(dict.fromkeys(m for _, m in lines), LOOKS(), strict=False))
        width = style.WIDE * max(1.0, len(places) / 3) if len(places) > 1 else style.HALF
        sheet, panels = style.new_panels(width, 3.6, len(places))
        for (where, method), cells in lines.items():
            if (line := self.points(cells)) is not None:
                _plot(panels[places.index(where)], line, label=method, **looks[method])
        for title, axes in zip(places, panels, strict=True):
            axes.set(xlabel=self.x, yscale=self.scale)
            axes.set_title(title, fontsize=style.LABEL, color=style.INK)
        panels[0].set(ylabel=self.y)
        if self.y == "accuracy":
            panels[0].set(ylabel=within_a_line(metric_name(figures)))
            panels[0].yaxis.set_major_formatter(PercentFormatter(1.0))
        named = {handle.get_label(): handle for axes in panels for handle in axes.get_lines()}
        above: Any = {"loc": "outside upper center", "ncols": 4, "frameon": False}
        sheet.legend(handles=list(named.values()), fontsize=style.TICK, **above)
        return sheet


def _plot(axes: Axes, line: Line, **look: Any) -> None:
    """The mean over seeds, and their range."""
    at, values = [at for at, _ in line], [of_seeds for _, of_seeds in line]
    axes.plot(at, list(map(mean, values)), marker=".", **look)
    if all(isinstance(x, int) for x in at):  # rounds and epochs have no halves
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    ends = list(map(min, values)), list(map(max, values))
    axes.fill_between(at, *ends, color=look["color"], alpha=0.15)


_LOCAL_EPOCHS = partial(over_setting, "classifier.epochs")
_ROUNDS = partial(Exhibit, over_time, "round")
_EPOCHS = partial(over_levels, epochs_to_target, TARGETS)
_TRAFFIC = Exhibit(over_traffic, "accuracy, %", y="MiB until then", scale="log")
_CLUSTERS = Exhibit(over_clusters, "cluster", y="clients")
EXHIBITS = {
    "fig5": Exhibit(_EPOCHS, "target accuracy, %", describe_targets, y="epochs at the server"),
    "fig6": Exhibit(over_time, "epoch at the server", describe_forgetting),
    "fig7": Exhibit(_LOCAL_EPOCHS, "local epochs"),
    "fig8": Exhibit(partial(over_setting, "num-samples"), "synthetic samples"),
    "fid": Exhibit(over_distance, "Fréchet distance (own features)", describe_fid),
    "fedaf": _ROUNDS(describe_rounds),
    "fedaf-table2": _ROUNDS(describe_domains),
    "fedaf-table6": _ROUNDS(describe_rounds),
    "fedd2s-table2": _ROUNDS(describe_clients),
    "fedd2s-table3": _ROUNDS(describe_clients),
    "fedd2s-fig5": Exhibit(_LOCAL_EPOCHS, "local epochs", describe_clients),
    "fedd2s-fig6": _ROUNDS(describe_clients),
    "fedd2s-fig7": Exhibit(
        partial(over_setting, "dropping.rate"), "dropping rate", describe_clients
    ),
    "hfldd": _ROUNDS(describe_hfldd, also={"traffic": _TRAFFIC, "clusters": _CLUSTERS}),
    "hfldd-table5": _ROUNDS(),
    "hfldd-table6": _ROUNDS(describe_sent),
    "hfldd-fig7": _ROUNDS(describe_sent),
}
