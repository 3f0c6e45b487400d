"""HFLDD's Figure 6, traffic until an accuracy, and Figure 4, the clusters that it found."""

from collections.abc import Sequence

from matplotlib import figure as drawn
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from cluster.studies.comparison import Figure
from cluster.studies.hfldd_tables import LEVELS, until
from cluster.studies.looks import look
from cluster.studies.suite_plots import panels_of
from fl.report import style


def draw_traffic(figures: Sequence[Figure]) -> drawn.Figure:
    """MiB over accuracy, a panel per place; a method that never has an accuracy ends before it."""

    def one(axes: Axes, figure: Figure) -> None:
        reached = {level: until(figure, level / 100) for level in LEVELS}
        points = {level: found[1] for level, found in reached.items() if found}
        axes.plot(list(points), list(points.values()), marker="o", **look(figure))
        axes.set(yscale="log", xlim=(LEVELS[0] - 5, 100))

    with_rounds = [figure for figure in figures if "per_round" in figure.results[0]]
    return panels_of(with_rounds or figures, one, "accuracy, %", "MiB until then")


def draw_clusters(figures: Sequence[Figure]) -> drawn.Figure:
    """A panel per place: a line of clients for each cluster, its head a square; first seed."""

    def one(axes: Axes, figure: Figure) -> None:
        result, colour = figure.results[0], look(figure)["color"]
        pairs = zip(result.get("clusters", []), result.get("heads", []), strict=True)
        for row, (cluster, head) in enumerate(pairs, start=1):
            members = [head, *(k for k in cluster if k != head)]
            axes.plot(range(1, len(members) + 1), [row] * len(members), color=style.RULE, zorder=0)
            axes.scatter(range(2, len(members) + 1), [row] * (len(members) - 1), color=style.TIME)
            axes.scatter([1], [row], marker="s", color=colour)
        axes.set(xlim=(0.5, largest + 0.5), ylim=(0.5, most + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))

    clustered = [figure for figure in figures if figure.cell.method == "hfldd"]
    found = [figure.results[0].get("clusters", []) for figure in clustered]
    most = max(map(len, found), default=1)
    largest = max((len(cluster) for clusters in found for cluster in clusters), default=1)
    return panels_of(clustered or figures[:1], one, "head, then members", "cluster")
