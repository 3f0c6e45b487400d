"""What the paper's figures show, as tables of numbers, in addition to the table of accuracies."""

from collections.abc import Sequence
from statistics import mean, stdev

import numpy as np

from cluster.studies.comparison import NOTHING, Figure, shown
from cluster.studies.published import DOMAINNET, FEDAF_2, FID_XI

TARGETS = range(10, 100, 5)
"""Accuracies in percent, of which Figure 5 shows those that some method reaches."""


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
    lines = [
        "Epochs at the server until an accuracy is reached by every seed, mean over seeds:",
        "",
        line(["Row", "Method", *(f"{t} %" for t in targets)]),
        line(["---"] * (2 + len(targets))),
    ]
    for figure in figures:
        epochs = [epochs_to_target(figure, t / 100) for t in targets]
        cells = [NOTHING if e is None else f"{e:.1f}" for e in epochs]
        lines.append(line([figure.cell.row, figure.cell.method, *cells]))
    return lines


def tell_forgetting(figures: Sequence[Figure]) -> list[str]:
    """Start, peak and end of the mean curve, and the fall from peak to end."""
    lines = [
        "Mean curve over seeds, in percent; a fall after the best epoch is forgetting:",
        "",
        line(["Row", "Method", "Start", "Best", "Epoch", "Last", "Fall"]),
        line(["---"] * 7),
    ]
    for figure in figures:
        curve = 100 * curves(figure).mean(axis=0)
        best = int(curve.argmax())
        points = [f"{curve[0]:.2f}", f"{curve[best]:.2f}", str(best), f"{curve[-1]:.2f}"]
        fall = f"{curve[best] - curve[-1]:.2f}"
        lines.append(line([figure.cell.row, figure.cell.method, *points, fall]))
    return lines


def tell_rounds(figures: Sequence[Figure]) -> list[str]:
    """The best round beside the last one, and bytes: FedAF's paper prints the best."""
    lines = [
        "The best round is chosen by the test split, as FedAF's paper does; what is in the table "
        "above is the last one:",
        "",
        line(["Row", "Method", "Last round, %", "Best round, %", "Paper's best", "MiB up"]),
        line(["---"] * 6),
    ]
    for figure in figures:
        best = [100 * result["best_accuracy"] for result in figure.results]
        printed = figure.cell.paper
        beside = shown(printed.mean, printed.spread) if printed else NOTHING
        points = [shown(figure.mean, figure.spread), shown(mean(best), _spread(best)), beside]
        mib = mean(result["bytes_up"] for result in figure.results) / 2**20
        lines.append(line([figure.cell.row, figure.cell.method, *points, f"{mib:.2f}"]))
    return lines


def tell_domains(figures: Sequence[Figure]) -> list[str]:
    """A column per domain, and their plain mean; the paper's below where the domains are its."""
    domains = list(figures[0].results[0]["per_domain_accuracy"])
    lines = [
        "Accuracy on each domain after the last round, in percent, and their plain mean (in the "
        "table above a domain counts by its samples):",
        "",
        line(["Method", *domains, "Mean"]),
        line(["---"] * (2 + len(domains))),
    ]
    for figure in figures:
        found = np.array([[r["per_domain_accuracy"][d] for d in domains] for r in figure.results])
        found = 100 * np.column_stack([found, found.mean(axis=1)])
        cells = [shown(column.mean(), _spread(column.tolist())) for column in found.T]
        lines.append(line([figure.cell.method, *cells]))
        if tuple(domains) == DOMAINNET:
            printed = FEDAF_2[figure.cell.method]
            lines.append(line(["paper", *(f"{v:.2f}" for v in (*printed, mean(printed)))]))
    return lines


def tell_clients(figures: Sequence[Figure]) -> list[str]:
    """How the clients' accuracies lie beside their mean, who is better off alone, and bytes."""
    lines = [
        "After the last round, in percent over clients; below alone: clients that method local, of "
        "the same row and seed, leaves with a higher accuracy:",
        "",
        line(
            ["Row", "Method", "Mean", "Spread", "Worst tenth", "Below alone", "MiB up", "x FedAvg"]
        ),
        line(["---"] * 8),
    ]
    for figure in figures:
        scores = [result["client_scores"] for result in figure.results]
        points = [
            f"{100 * mean(s[n] for s in scores):.2f}" for n in ("mean", "spread", "worst_tenth")
        ]
        mib = mean(result["bytes_up"] for result in figure.results) / 2**20
        lines.append(
            line(
                [
                    *(figure.cell.row, figure.cell.method, *points, _below_alone(figure, figures)),
                    *(f"{mib:.2f}", _of_fedavg(figure)),
                ]
            )
        )
    return lines


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


def tell_nothing_more(figures: Sequence[Figure]) -> list[str]:
    """No further lines, where the table of accuracies states all that the figure shows."""
    return []


def tell_fid(figures: Sequence[Figure]) -> list[str]:
    """A line per number of CVAE epochs, between the two ends of the scale."""
    first = figures[0].results[0]["fid"]
    lines = [
        f"Fréchet distance to the real training images: {first['features']}. The paper names no "
        "network: its distances are on another scale, and only their order can be compared.",
        "",
        line(["Images", "Distance", "Paper"]),
        line(["---"] * 3),
        line(["Gaussian noise", f"{first['noise']:.4g}", "360.53"]),
    ]
    for figure in {f.cell.row: f for f in figures}.values():  # the variants share their samples
        epochs = dict(figure.cell.settings)["generator.epochs"]
        printed = FID_XI.get(epochs, NOTHING) if figure.cell.paper else NOTHING
        distances = [result["fid"]["kept"] for result in figure.results]
        spread = _spread(distances)
        found = f"{mean(distances):.4g}"  # significant digits, since any scale is possible
        found += "" if spread is None else f" ± {spread:.2g}"
        lines.append(line([f"{epochs} epochs", found, str(printed)]))
    return [*lines, line(["real, two halves", f"{first['real']:.4g}", "0.000002"])]


def curves(figure: Figure) -> np.ndarray:
    """Accuracy, 0 to 1, by seed and epoch at the server; the start is epoch 0."""
    return np.array([[r["start_accuracy"], *r["accuracy_curve"]] for r in figure.results])


def _spread(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def line(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"
