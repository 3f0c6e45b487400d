"""HFLDD's Tables II to IV and Figure 6, traffic until an accuracy; and what its members sent."""

from collections.abc import Sequence
from itertools import accumulate
from statistics import mean

from cluster.studies.comparison import NOTHING, Figure
from cluster.studies.published_hfldd import TABLES_II_TO_IV, TARGETS
from cluster.studies.suite_tables import line
from fl.json_values import SettingValues

LEVELS = (50, 60, 70, 80, 90, 95)
"""Accuracies in percent, of Figure 6, which names none."""
MIB = 2**20
PAPERS = ("Paper's rounds", "Paper's MiB", "Paper's x HFLDD")


def tell_hfldd(figures: Sequence[Figure]) -> list[str]:
    """Traffic until the paper's targets and others, and what members sent."""
    return [*tell_targets_of_tables(figures), "", *tell_traffic(figures), "", *tell_sent(figures)]


def tell_targets_of_tables(figures: Sequence[Figure]) -> list[str]:
    """Tables II to IV: rounds and MiB until the data set's target, of IID clients."""
    lines = [
        "Tables II to IV, IID clients: rounds and MiB (up, down and between clients) until every "
        "seed has the target, mean over seeds. The paper's MiB are of a round more than it prints:",
        "",
        line(["Row", "Method", "Target", "Rounds", "MiB", "x HFLDD", *PAPERS]),
        line(["---"] * 9),
    ]
    for figure in figures:
        settings = dict(figure.cell.settings)
        target = TARGETS.get(figure.cell.row.partition("-")[0])
        if settings.get("C") != "10" or target is None:
            continue
        own = until(figure, target / 100)
        base = _of_hfldd(figure, figures, target / 100)
        lines.append(
            line(
                [
                    *(figure.cell.row, figure.cell.method, f"{target} %"),
                    *((f"{own[0]:.1f}", f"{own[1]:.2f}") if own else (NOTHING, NOTHING)),
                    f"{own[1] / base:.1f}" if own and base else NOTHING,
                    *_printed(figure),
                ]
            )
        )
    return lines


def _printed(figure: Figure) -> list[str]:
    """The paper's cell of the same data set; its sizes are those of the paper scale."""
    table = TABLES_II_TO_IV.get(figure.cell.row.partition("-")[0], {})
    cell = table.get(figure.cell.method)
    if cell is None:
        return [NOTHING] * 3
    return [str(cell.round), f"{cell.mib:.2f}", f"{cell.mib / table['hfldd'].mib:.1f}"]


def _of_hfldd(figure: Figure, figures: Sequence[Figure], target: float) -> float | None:
    for other in figures:
        if (other.cell.row, other.cell.method) == (figure.cell.row, "hfldd"):
            found = until(other, target)
            return found[1] if found else None
    return None


def tell_traffic(figures: Sequence[Figure]) -> list[str]:
    """Figure 6: a column for each accuracy that some method has."""
    levels = [a for a in LEVELS if any(until(figure, a / 100) for figure in figures)]
    lines = [
        "MiB (up, down and between clients) until every seed has an accuracy, mean over seeds:",
        "",
        line(["Row", "Method", *(f"{level} %" for level in levels)]),
        line(["---"] * (2 + len(levels))),
    ]
    for figure in figures:
        found = [until(figure, level / 100) for level in levels]
        cells = [f"{point[1]:.2f}" if point else NOTHING for point in found]
        lines.append(line([figure.cell.row, figure.cell.method, *cells]))
    return lines


def tell_sent(figures: Sequence[Figure]) -> list[str]:
    """Of HFLDD's rows: clusters, and how near to real images is what members sent."""
    lines = [
        "What members sent their heads; the distance is the root mean square one from a sent image "
        "to the nearest real one of its class at its client, of the pixels' range. First seed:",
        "",
        line(["Row", "Method", "Clusters", "Largest", "Smallest", "Images", "Steps", "Distance"]),
        line(["---"] * 8),
    ]
    for figure in figures:
        result = figure.results[0]
        if "clusters" not in result or "heads" not in result:
            continue
        sizes = [len(cluster) for cluster in result["clusters"]]
        sent = result.get("distilled")
        about = (
            [str(sent["images"]), f"{sent['steps']:.0f}", f"{sent['nearest_real']:.5f}"]
            if sent
            else [NOTHING] * 3
        )
        counts = [str(len(sizes)), str(max(sizes)), str(min(sizes))]
        lines.append(line([figure.cell.row, figure.cell.method, *counts, *about]))
    return lines


def until(figure: Figure, target: float) -> tuple[float, float] | None:
    """Rounds and MiB until the accuracy is first reached, mean over seeds.

    None where a seed never reaches it, or the method has no rounds.
    """
    found = [_of_one(result, target) for result in figure.results]
    reached = [point for point in found if point is not None]
    if len(reached) < len(found):
        return None
    return mean(rounds for rounds, _ in reached), mean(mib for _, mib in reached)


def _of_one(result: SettingValues, target: float) -> tuple[int, float] | None:
    rounds = result.get("per_round", [])
    sent = accumulate(r["bytes_up"] + r["bytes_down"] + r.get("bytes_peer", 0) for r in rounds)
    for about, total in zip(rounds, sent, strict=True):
        if about["accuracy"] >= target:
            return about["round"], total / MIB
    return None
