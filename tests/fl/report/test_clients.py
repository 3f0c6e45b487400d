"""Figures of the clients."""

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from fl.report import course, style
from fl.report.read import ClientRow, Partition
from tests.fl.report.conftest import drawn, legend, names, record


def accuracies(scores: list[float | None]) -> tuple[Axes, str]:
    return drawn(course.accuracies(record(client_accuracy={1: scores})))


def heights(axes: Axes, label: str) -> list[float]:
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return np.asarray(line.get_ydata()).tolist()


def test_clients_are_in_the_order_of_their_accuracy_with_the_worst_tenth_marked() -> None:
    scores: list[float | None] = [k / 40 for k in range(40, 19, -1)]
    scores[4] = None
    axes, caption = accuracies(scores)
    assert heights(axes, "worst tenth") == pytest.approx([20 / 40, 21 / 40])
    assert len(heights(axes, "client")) == 18
    assert names(axes.xaxis) == [str(k) for k in range(20, -1, -1) if k != 4]
    assert "worst tenth 51.2%" in caption


# Uploads.


def uploads(*sent: int | None) -> tuple[Axes, str]:
    rows = [ClientRow(k, "classifier", bytes_up=count) for k, count in enumerate(sent)]
    return drawn(course.uploads(record(clients=rows)))


def test_uploads_are_of_who_reported() -> None:
    axes, caption = uploads(1000, None, 2000)
    assert caption == "What each client sent to the server, 3.0 kB in all."
    assert names(axes.xaxis) == ["0", "2"]
    assert np.asarray(axes.collections[0].get_offsets())[:, 1].tolist() == [1000, 2000]
    assert axes.get_ylim()[0] == 0


def test_if_nobody_sent_anything_no_figure_shows_it() -> None:
    rows = [ClientRow(0, "classifier", bytes_up=0), ClientRow(1, "classifier")]
    assert course.uploads(record(clients=rows)) is None


# The partition.


def partition(counts: np.ndarray, roles: list[str]) -> tuple[Axes, str]:
    part = Partition("iid", "0123456789abcdef", counts, ["a", "$\\frac", "c"], roles)
    return drawn(course.partition(record(partition=part)))


def test_a_cell_of_the_partition_is_darker_with_more_samples_in_its_role_s_colour() -> None:
    counts = np.array([[10, 0, 40], [5, 20, 1]])
    axes, caption = partition(counts, ["classifier", "generator"])
    shades = np.asarray(axes.images[0].get_array())
    assert shades.shape == (3, 2, 3)
    assert shades[1, 0].tolist() == [1, 1, 1], "the client has none of the class"
    assert shades[2, 0].tolist() == pytest.approx(to_rgb(style.role_colour("classifier")))
    assert shades[2, 0].sum() < shades[0, 0].sum() < 3
    assert names(axes.yaxis) == ["a", "$\\frac", "c"]
    assert "iid partition 0123456789ab:" in caption
    assert caption.endswith("has 40.")


# Attacks.

CURVE = {"auc": 0.7, "curve": [0.0, 0.1, 1.0]}


def attacked(**more: Any) -> dict[str, Any]:
    return {"false_positives": [1e-3, 1e-2, 1.0], "uploads": [], "global": None, **more}


def test_uploads_and_global_model_have_a_line_each_beside_chance() -> None:
    found = [{"client": k, "attacks": {"loss": {**CURVE, "auc": 0.5 + k / 10}}} for k in (2, 1)]
    best = {"attacks": {"ratio": {**CURVE, "auc": 0.9}}}
    run = record(privacy=attacked(uploads=found, **{"global": best}))
    axes, caption = drawn(course.privacy(run))
    assert len(axes.lines) == 2 + 1 + 1
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert legend(axes) == ["loss, an upload", "ratio, the global model"]
    assert caption.endswith(": 0.700 for an upload, 0.900 for the global model.")


def test_without_an_attack_there_is_no_figure() -> None:
    assert course.privacy(record(privacy=attacked())) is None
    none = attacked(uploads=[{"client": 0, "attacks": {}}])
    assert course.privacy(record(privacy=none)) is None
