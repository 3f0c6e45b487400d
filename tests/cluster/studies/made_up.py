"""Runs of the papers' figures that nobody ran."""

from cluster.studies.cells import TABLES
from cluster.studies.comparison import Figure, published

CURVES = [[0.5, 0.7, 0.6], [0.6, 0.9, 0.8]]
"""Of two seeds, after a start at 0.3."""


def figures(name: str) -> list[Figure]:
    """The cells for two alphas, all with the same two runs."""
    results = tuple(
        {
            "accuracy": curve[-1],
            "start_accuracy": 0.3,
            "accuracy_curve": curve,
            "best_accuracy": max(curve),
            "bytes_up": 3 * 2**19,
            "protocol": "one-shot",
            "per_domain_accuracy": dict.fromkeys(published()["fedaf-table2"]["domains"], curve[-1]),
            "fid": {"kept": 12.5, "noise": 99.0, "real": 0.25, "features": "a network"},
        }
        for curve in CURVES
    )
    return [Figure(c, results) for c in TABLES[name]("paper") if "alpha0.3" not in c.row]
