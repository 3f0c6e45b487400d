"""The papers' figures, drawn from their runs; and which tables state their numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, cycle, product
from statistics import mean, stdev
from typing import Any

import numpy as np
from matplotlib import figure as drawn
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from cluster.studies.comparison import NOTHING, Figure, published, shown, table
from fl.json_files import SettingValues
from fl.report import style

# What the papers' figures show, as tables of numbers, in addition to the table of accuracies.

MIB = 2**20
TARGETS = range(10, 100, 5)
"""Accuracies in percent, of which FedMHO's Figure 5 shows those that some method reaches."""
LEVELS = (50, 60, 70, 80, 90, 95)
"""Accuracies in percent, of HFLDD's Figure 6, which names none."""


def epochs_to_target(figure: Figure, target: float) -> float | None:
    """Epochs at the server until ``target`` (0 to 1) is first reached, mean over seeds.

    0 where the start is as good already; None where a seed never reaches it.
    """
    found = []
    for result in figure.results:
        curve = [result["start_accuracy"], *result["accuracy_curve"]]
        reached = [epoch for epoch, accuracy in enumerate(curve) if accuracy >= target]
        if not reached:
            return None
        found.append(reached[0])
    return mean(found)


def tell_targets(figures: Sequence[Figure]) -> list[str]:
    """A line per method and row, a column per target that some method reaches."""
    targets = [t for t in TARGETS if any(epochs_to_target(f, t / 100) is not None for f in figures)]
    rows = []
    for figure in figures:
        epochs = [epochs_to_target(figure, t / 100) for t in targets]
        rows.append([*_named(figure), *(NOTHING if e is None else f"{e:.1f}" for e in epochs)])
    return [
        "Epochs at the server until an accuracy is reached by every seed, mean over seeds:",
        "",
        *table(["Row", "Method", *(f"{t} %" for t in targets)], rows),
    ]


def tell_forgetting(figures: Sequence[Figure]) -> list[str]:
    """Start, peak and end of the mean curve, and the fall from peak to end."""
    rows = []
    for figure in figures:
        curve = 100 * curves(figure).mean(axis=0)
        best = int(curve.argmax())
        points = [f"{curve[0]:.2f}", f"{curve[best]:.2f}", str(best), f"{curve[-1]:.2f}"]
        rows.append([*_named(figure), *points, f"{curve[best] - curve[-1]:.2f}"])
    return [
        "Mean curve over seeds, in percent; a fall after the best epoch is forgetting:",
        "",
        *table(["Row", "Method", "Start", "Best", "Epoch", "Last", "Fall"], rows),
    ]


def tell_rounds(figures: Sequence[Figure]) -> list[str]:
    """The best round beside the last one, and bytes: FedAF's paper prints the best."""
    rows = []
    for figure in figures:
        best = [100 * result["best_accuracy"] for result in figure.results]
        paper = figure.cell.paper
        beside = shown(paper.mean, paper.spread) if paper else NOTHING
        points = [shown(figure.mean, figure.spread), shown(mean(best), _spread(best)), beside]
        rows.append([*_named(figure), *points, _mib_up(figure)])
    return [
        "The best round is chosen by the test split, as FedAF's paper does; what is in the table "
        "above is the last one:",
        "",
        *table(["Row", "Method", "Last round, %", "Best round, %", "Paper's best", "MiB up"], rows),
    ]


def tell_domains(figures: Sequence[Figure]) -> list[str]:
    """A column per domain, and their plain mean; the paper's below where the domains are its."""
    domains = list(figures[0].results[0]["per_domain_accuracy"])
    papers = published()["fedaf-table2"]
    rows = []
    for figure in figures:
        found = np.array([[r["per_domain_accuracy"][d] for d in domains] for r in figure.results])
        found = 100 * np.column_stack([found, found.mean(axis=1)])
        cells = [shown(column.mean(), _spread(column.tolist())) for column in found.T]
        rows.append([figure.cell.method, *cells])
        if domains == papers["domains"] and figure.cell.method in papers["methods"]:
            printed = papers["methods"][figure.cell.method]
            rows.append(["paper", *(f"{v:.2f}" for v in (*printed, mean(printed)))])
    return [
        "Accuracy on each domain after the last round, in percent, and their plain mean (in the "
        "table above a domain counts by its samples):",
        "",
        *table(["Method", *domains, "Mean"], rows),
    ]


def tell_clients(figures: Sequence[Figure]) -> list[str]:
    """How the clients' accuracies lie beside their mean, who is better off alone, and bytes."""
    rows = []
    for figure in figures:
        scores = [result["client_scores"] for result in figure.results]
        points = [
            f"{100 * mean(s[n] for s in scores):.2f}" for n in ("mean", "spread", "worst_tenth")
        ]
        sent = _mib_up(figure), _of_fedavg(figure)
        rows.append([*_named(figure), *points, _below_alone(figure, figures), *sent])
    names = ["Row", "Method", "Mean", "Spread", "Worst tenth", "Below alone", "MiB up", "x FedAvg"]
    return [
        "After the last round, in percent over clients; below alone: clients that method local, of "
        "the same row and seed, leaves with a higher accuracy:",
        "",
        *table(names, rows),
    ]


def _below_alone(figure: Figure, figures: Sequence[Figure]) -> str:
    """Clients of all seeds whose accuracy is lower than alone, of those that were scored."""
    alone = next(
        (f for f in figures if f.cell.row == figure.cell.row and f.cell.method == "local"), None
    )
    if alone is None or alone is figure:
        return NOTHING
    pairs = [
        pair
        for ours, theirs in zip(figure.results, alone.results, strict=True)
        for pair in zip(ours["client_accuracy"], theirs["client_accuracy"], strict=True)
        if None not in pair
    ]
    return f"{sum(own < other for own, other in pairs)} of {len(pairs)}"


def _of_fedavg(figure: Figure) -> str:
    """Bytes up over what FedAvg's clients would have sent in the same rounds."""
    if "fedavg_bytes_up" not in figure.results[0]:
        return NOTHING
    shares = [result["bytes_up"] / result["fedavg_bytes_up"] for result in figure.results]
    return f"{mean(shares):.2f}"


def tell_fid(figures: Sequence[Figure]) -> list[str]:
    """A line per number of CVAE epochs, between the two ends of the scale."""
    first, printed = figures[0].results[0]["fid"], published()["fid-distances"]
    rows = [["Gaussian noise", f"{first['noise']:.4g}", "360.53"]]
    for figure in {f.cell.row: f for f in figures}.values():  # the variants share their samples
        epochs = dict(figure.cell.settings)["generator.epochs"]
        paper = printed.get(epochs, NOTHING) if figure.cell.paper else NOTHING
        distances = [result["fid"]["kept"] for result in figure.results]
        spread = _spread(distances)
        found = f"{mean(distances):.4g}"  # significant digits, since any scale is possible
        found += "" if spread is None else f" ± {spread:.2g}"
        rows.append([f"{epochs} epochs", found, str(paper)])
    rows.append(["real, two halves", f"{first['real']:.4g}", "0.000002"])
    return [
        f"Fréchet distance to the real training images: {first['features']}. The paper names no "
        "network: its distances are on another scale, and only their order can be compared.",
        "",
        *table(["Images", "Distance", "Paper"], rows),
    ]


def tell_hfldd(figures: Sequence[Figure]) -> list[str]:
    """Traffic until the paper's targets and others, and what members sent."""
    return [*tell_targets_of_tables(figures), "", *tell_traffic(figures), "", *tell_sent(figures)]


def tell_targets_of_tables(figures: Sequence[Figure]) -> list[str]:
    """HFLDD's Tables II to IV: rounds and MiB until the data set's target, of IID clients."""
    rows = []
    for figure in figures:
        papers = published()["hfldd-traffic"].get(figure.cell.row.partition("-")[0])
        if papers is None or dict(figure.cell.settings).get("C") != "10":
            continue
        target, printed = papers["target"], papers["methods"]
        own = until(figure, target / 100)
        base = next((f for f in figures if f.cell.name == f"{figure.cell.row}-hfldd"), None)
        beside = until(base, target / 100) if base else None
        cells = [*_named(figure), f"{target} %"]
        cells += [f"{own[0]:.1f}", f"{own[1]:.2f}"] if own else [NOTHING] * 2
        cells.append(f"{own[1] / beside[1]:.1f}" if own and beside else NOTHING)
        paper = printed.get(figure.cell.method)  # its sizes are those of the paper scale
        over = f"{paper['mib'] / printed['hfldd']['mib']:.1f}" if paper else NOTHING
        cells += [str(paper["round"]), f"{paper['mib']:.2f}"] if paper else [NOTHING] * 2
        rows.append([*cells, over])
    papers_columns = ["Paper's rounds", "Paper's MiB", "Paper's x HFLDD"]
    return [
        "Tables II to IV, IID clients: rounds and MiB (up, down and between clients) until every "
        "seed has the target, mean over seeds. The paper's MiB are of a round more than it prints:",
        "",
        *table(["Row", "Method", "Target", "Rounds", "MiB", "x HFLDD", *papers_columns], rows),
    ]


def tell_traffic(figures: Sequence[Figure]) -> list[str]:
    """HFLDD's Figure 6: a column for each accuracy that some method has."""
    levels = [a for a in LEVELS if any(until(figure, a / 100) for figure in figures)]
    rows = []
    for figure in figures:
        found = [until(figure, level / 100) for level in levels]
        rows.append([*_named(figure), *(f"{p[1]:.2f}" if p else NOTHING for p in found)])
    return [
        "MiB (up, down and between clients) until every seed has an accuracy, mean over seeds:",
        "",
        *table(["Row", "Method", *(f"{level} %" for level in levels)], rows),
    ]


def tell_sent(figures: Sequence[Figure]) -> list[str]:
    """Of HFLDD's rows: clusters, and how near to real images is what members sent."""
    rows = []
    for figure in figures:
        result = figure.results[0]
        if "clusters" not in result or "heads" not in result:
            continue
        sizes = [len(cluster) for cluster in result["clusters"]]
        counts = [str(len(sizes)), str(max(sizes)), str(min(sizes))]
        about = [NOTHING] * 3
        if sent := result.get("distilled"):
            about = [str(sent["images"]), f"{sent['steps']:.0f}", f"{sent['nearest_real']:.5f}"]
        rows.append([*_named(figure), *counts, *about])
    names = ["Row", "Method", "Clusters", "Largest", "Smallest", "Images", "Steps", "Distance"]
    return [
        "What members sent their heads; the distance is the root mean square one from a sent image "
        "to the nearest real one of its class at its client, of the pixels' range. First seed:",
        "",
        *table(names, rows),
    ]


def until(figure: Figure, target: float) -> tuple[float, float] | None:
    """Rounds and MiB until the accuracy is first reached, mean over seeds.

    None where a seed never reaches it, or the method has no rounds.
    """
    reached = [_until_in_run(result, target) for result in figure.results]
    found = [point for point in reached if point is not None]
    if len(found) < len(reached):
        return None
    return mean(rounds for rounds, _ in found), mean(mib for _, mib in found)


def _until_in_run(result: SettingValues, target: float) -> tuple[int, float] | None:
    rounds = result.get("per_round", [])
    sent = accumulate(r["bytes_up"] + r["bytes_down"] + r.get("bytes_peer", 0) for r in rounds)
    for about, total in zip(rounds, sent, strict=True):
        if about["accuracy"] >= target:
            return about["round"], total / MIB
    return None


def curves(figure: Figure) -> np.ndarray:
    """Accuracy, 0 to 1, by seed and epoch at the server; the start is epoch 0."""
    return np.array([[r["start_accuracy"], *r["accuracy_curve"]] for r in figure.results])


def _named(figure: Figure) -> tuple[str, str]:
    return figure.cell.row, figure.cell.method


def _mib_up(figure: Figure) -> str:
    return f"{mean(result['bytes_up'] for result in figure.results) / MIB:.2f}"


def _spread(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


Draw = Callable[[Sequence[Figure]], drawn.Figure]
Look = Mapping[str, Any]
"""Colour, dashes and label of a method's line, as Matplotlib takes them."""
Line = Callable[[Axes, Figure, Look], None]
DASHES = ("-", "--", ":", "-.")
CLASSES = {"1": "1 class per client", "10": "IID"}


def draw_targets(figures: Sequence[Figure]) -> drawn.Figure:
    """Epochs over target, a panel per data set and alpha."""

    def line(axes: Axes, figure: Figure, look: Look) -> None:
        reached = {t: epochs_to_target(figure, t / 100) for t in TARGETS}
        points = {t: epochs for t, epochs in reached.items() if epochs is not None}
        axes.plot(list(points), list(points.values()), marker="o", **look)

    return panels_of(figures, line, "target accuracy, %", "epochs at the server")


def draw_curves(time: str) -> Draw:
    """Accuracy over epochs or rounds, a panel per data set and alpha: mean and seeds' range."""

    def line(axes: Axes, figure: Figure, look: Look) -> None:
        found = curves(figure)
        times = np.arange(found.shape[1])
        axes.plot(times, found.mean(axis=0), **look)
        axes.fill_between(times, found.min(0), found.max(0), color=look["color"], alpha=0.15)

    return lambda figures: _accuracy(panels_of(figures, line, time, "accuracy"))


def draw_setting(name: str, label: str) -> Draw:
    """Accuracy over a setting, a panel per data set and alpha: mean and deviation."""

    def draw(figures: Sequence[Figure]) -> drawn.Figure:
        def line(axes: Axes, figure: Figure, look: Look) -> None:
            same = [f for f in figures if _line_of(f) == _line_of(figure)]
            x = [float(dict(f.cell.settings)[name]) for f in same]
            y = [f.mean / 100 for f in same]
            axes.errorbar(x, y, [(f.spread or 0) / 100 for f in same], marker="o", **look)
            # Explicit limits, since those that a log scale finds for a single value leave it out.
            axes.set(xscale="log", xlim=(min(x) / 1.2, max(x) * 1.2))
            axes.set_xticks(x, labels=[f"{value:g}" for value in x])
            axes.minorticks_off()

        return _accuracy(panels_of(_lines(figures), line, label, "accuracy"))

    return draw


def draw_fid(figures: Sequence[Figure]) -> drawn.Figure:
    """Accuracy over the distance of the samples: one point per number of CVAE epochs."""

    def line(axes: Axes, figure: Figure, look: Look) -> None:
        same = [f for f in figures if _line_of(f) == _line_of(figure)]
        x = [mean(result["fid"]["kept"] for result in f.results) for f in same]
        axes.plot(x, [f.mean / 100 for f in same], marker="o", **look)

    label = "Fréchet distance (own features)"
    return _accuracy(panels_of(_lines(figures), line, label, "accuracy"))


def draw_traffic(figures: Sequence[Figure]) -> drawn.Figure:
    """HFLDD's Figure 6: MiB over accuracy, a panel per place; a method that never has an accuracy
    ends before it."""

    def line(axes: Axes, figure: Figure, look: Look) -> None:
        reached = {level: until(figure, level / 100) for level in LEVELS}
        points = {level: found[1] for level, found in reached.items() if found}
        axes.plot(list(points), list(points.values()), marker="o", **look)
        axes.set(yscale="log", xlim=(LEVELS[0] - 5, 100))

    with_rounds = [figure for figure in figures if "per_round" in figure.results[0]]
    return panels_of(with_rounds or figures, line, "accuracy, %", "MiB until then")


def draw_clusters(figures: Sequence[Figure]) -> drawn.Figure:
    """HFLDD's Figure 4, a panel per place: a line of clients for each cluster, its head a square;
    first seed."""

    def line(axes: Axes, figure: Figure, look: Look) -> None:
        result = figure.results[0]
        pairs = zip(result.get("clusters", []), result.get("heads", []), strict=True)
        for row, (cluster, head) in enumerate(pairs, start=1):
            members = [head, *(k for k in cluster if k != head)]
            axes.plot(range(1, len(members) + 1), [row] * len(members), color=style.RULE, zorder=0)
            axes.scatter(range(2, len(members) + 1), [row] * (len(members) - 1), color=style.TIME)
            axes.scatter([1], [row], marker="s", color=look["color"])
        axes.set(xlim=(0.5, largest + 0.5), ylim=(0.5, most + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))

    clustered = [figure for figure in figures if figure.cell.method == "hfldd"]
    found = [figure.results[0].get("clusters", []) for figure in clustered]
    most = max(map(len, found), default=1)
    largest = max((len(cluster) for clusters in found for cluster in clusters), default=1)
    return panels_of(clustered or figures[:1], line, "head, then members", "cluster")


def panels_of(figures: Sequence[Figure], line: Line, x: str, y: str) -> drawn.Figure:
    """A sheet with a panel for each place, and a line for each figure; methods in a legend."""
    places = list(dict.fromkeys(place(figure) for figure in figures))
    looks = _looks(figures)
    width = style.WIDE * max(1.0, len(places) / 3) if len(places) > 1 else style.HALF
    sheet, panels = style.new_panels(width, 3.6, len(places))
    for figure in figures:
        line(panels[places.index(place(figure))], figure, looks[figure.cell.method])
    for title, axes in zip(places, panels, strict=True):
        axes.set(xlabel=x)
        axes.set_title(title, fontsize=style.LABEL, color=style.INK)
    panels[0].set(ylabel=y)
    handles, labels = panels[0].get_legend_handles_labels()
    sheet.legend(
        handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=style.TICK
    )
    return sheet


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


def _looks(figures: Sequence[Figure]) -> dict[str, Look]:
    """Each method's look, by its name: Matplotlib's colours in turn, then again with dashes."""
    methods = dict.fromkeys(figure.cell.method for figure in figures)
    looks = cycle(product(DASHES, (f"C{number}" for number in range(10))))
    return {
        method: {"color": colour, "linestyle": dashes, "label": method}
        for method, (dashes, colour) in zip(methods, looks, strict=False)
    }


def _accuracy(sheet: drawn.Figure) -> drawn.Figure:
    sheet.axes[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    return sheet


def _line_of(figure: Figure) -> tuple[str, str]:
    return place(figure), figure.cell.method


def _lines(figures: Sequence[Figure]) -> list[Figure]:
    """A figure for each line, of those that are its points."""
    return list({_line_of(figure): figure for figure in figures}.values())


@dataclass(frozen=True)
class Exhibit:
    """How one of the papers' figures is drawn, and which tables state its numbers."""

    draw: Draw
    tell: Callable[[Sequence[Figure]], list[str]] = lambda figures: []
    """Not given where the table of accuracies states all that the figure shows."""
    also: Mapping[str, Draw] = field(default_factory=dict)
    """Further pictures, by what their names end in."""


_OVER_ROUNDS = draw_curves("round")
EXHIBITS = {
    "fig5": Exhibit(draw_targets, tell_targets),
    "fig6": Exhibit(draw_curves("epoch at the server"), tell_forgetting),
    "fig7": Exhibit(draw_setting("classifier.epochs", "local epochs")),
    "fig8": Exhibit(draw_setting("num-samples", "synthetic samples")),
    "fid": Exhibit(draw_fid, tell_fid),
    "fedaf": Exhibit(_OVER_ROUNDS, tell_rounds),
    "fedaf-table2": Exhibit(_OVER_ROUNDS, tell_domains),
    "fedaf-table6": Exhibit(_OVER_ROUNDS, tell_rounds),
    "fedd2s-table2": Exhibit(_OVER_ROUNDS, tell_clients),
    "fedd2s-table3": Exhibit(_OVER_ROUNDS, tell_clients),
    "fedd2s-fig5": Exhibit(draw_setting("classifier.epochs", "local epochs"), tell_clients),
    "fedd2s-fig6": Exhibit(_OVER_ROUNDS, tell_clients),
    "fedd2s-fig7": Exhibit(draw_setting("dropping.rate", "dropping rate"), tell_clients),
    "hfldd": Exhibit(
        _OVER_ROUNDS, tell_hfldd, {"traffic": draw_traffic, "clusters": draw_clusters}
    ),
    "hfldd-table5": Exhibit(_OVER_ROUNDS),
    "hfldd-table6": Exhibit(_OVER_ROUNDS, tell_sent),
    "hfldd-fig7": Exhibit(_OVER_ROUNDS, tell_sent),
}
