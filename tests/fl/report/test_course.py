"""Figures of a run's course."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.transforms import Bbox

from fl.events import RoundEnd
from fl.report import course, style
from fl.report.read import LossCurve
from tests.fl.report.conftest import CURVE, START, drawn, legend, names, record


def test_the_curve_is_the_epochs_with_the_start_as_epoch_zero() -> None:
    run = record(accuracy=CURVE, result={"start_accuracy": START})
    axes, caption = drawn(course.accuracy(run))
    line, start, best, last = axes.lines
    assert dict(zip(*line.get_data(), strict=True)) == {0: START} | CURVE
    assert [mark.get_data() for mark in (start, best, last)] == [
        ([0], [START]),
        ([3], [0.90]),
        ([4], [0.88]),
    ]
    assert legend(axes)[1] == "best 90.0%, epoch 3"
    assert caption == (
        "Accuracy of the global model on the test samples after each fusion epoch; "
        "0 is before the first."
    )


def test_the_caption_says_which_samples_a_validation_is_on() -> None:
    run = record(accuracy=CURVE, config={"data": {"validation": 0.2}})
    _, caption = drawn(course.accuracy(run))
    assert caption.startswith("Accuracy of the global model on the held-out training samples")


def test_bands_show_how_accuracy_is_distributed_over_the_scored_clients() -> None:
    rounds = {1: [0.0, None, 0.1, 0.2], 2: [None, None, 0.4, 0.8]}
    axes, caption = drawn(
        course.accuracy(record(accuracy={1: 0.1, 2: 0.6}, client_accuracy=rounds))
    )
    corners = [band.get_paths()[0].vertices for band in axes.collections]
    heights = [sorted({*c[c[:, 0] == 2, 1].round(9)}) for c in corners]
    assert heights == [[0.4, 0.8], [0.44, 0.76]]
    assert caption == "Mean over clients after each round."
    assert legend(axes)[:2] == ["last 60.0%, round 2", "all clients"]


def test_a_run_of_rounds_says_where_their_time_went() -> None:
    ends = [
        RoundEnd(round=k, rounds=2, accuracy=0.5, took=took, bytes_up=9, bytes_down=9)
        for k, took in enumerate(({"local": 8.0, "server": 1.5}, {"local": 8.5, "overhead": 2.0}))
    ]
    axes, caption = drawn(course.rounds(record(rounds=ends)))
    assert [bar.get_height() for bar in axes.patches] == [8, 8.5, 1.5, 0, 0, 2]
    assert caption.endswith("1.0 s a round and 10% of all.")


def test_time_bars_are_the_phases_and_what_is_left_of_the_total() -> None:
    seconds = {"local": 4.0, "filter": 0.0, "fusion": 3.0}
    axes, caption = drawn(course.time(record(result={"seconds": seconds | {"total": 9.0}})))
    widths = [bar.get_width() for bar in axes.patches]
    assert dict(zip(names(axes.yaxis), widths, strict=True)) == {
        "local": 4.0,
        "fusion": 3.0,
        "other": 2.0,
    }
    assert caption == "The run's 9.0 s by phase."
    assert drawn(course.time(record(result={"seconds": seconds})))[1] == "The run's 7.0 s by phase."


# Training losses.


def curves(count: int, role: str = "classifier", model: str = "cnn") -> list[LossCurve]:
    return [LossCurve(k, role, model, [1.0, 2.0, 3.0], [3.0 + k, 2.0, 1.0]) for k in range(count)]


def panels(losses: list[LossCurve]) -> list[Axes]:
    figure = course.losses(record(losses=losses))
    assert figure is not None
    figure[0].draw_without_rendering()
    return figure[0].axes


def test_each_role_and_model_has_a_panel_in_the_roles_colour() -> None:
    condensing = LossCurve(3, "condenser", None, [10.0, 20.0], [2.0, 1.0], "step")
    shown = panels([*curves(2), condensing, *curves(1, "generator", "cvae"), *curves(1)])
    assert [axes.get_title(loc="left") for axes in shown] == [
        "classifier, cnn: 3 clients",
        "condenser: 1 client",
        "generator, cvae: 1 client",
    ]
    lines = [axes.collections[0] for axes in shown]
    assert [len(own.get_paths()) for own in lines] == [3, 1, 1]
    assert to_hex(lines[2].get_edgecolor()[0]) == style.ROLES["generator"]
    assert lines[0].get_paths()[0].vertices.tolist() == [[1, 3], [2, 2], [3, 1]]
    assert [axes.get_xlabel() for axes in shown] == ["epoch", "step", "epoch"]


def test_losses_that_are_not_finite_are_left_out() -> None:
    (axes,) = panels([LossCurve(0, "classifier", "$^", [1.0, 2.0], [math.nan] * 2)])
    assert axes.get_title(loc="left") == "classifier, $^: 1 client"


# Placement.


def entry(client: int, start: float | None, end: float | None, **other: Any) -> dict[str, Any]:
    """One client's entry, as result.json has it."""
    defaults = {"client": client, "role": "classifier", "node": "node-a", "attempts": 1}
    return defaults | {"device_uuid": "GPU-8f3c2d1e-0000", "start": start, "end": end} | other


def bars(axes: Axes) -> list[Bbox]:
    return [path.get_extents() for row in axes.collections for path in row.get_paths()]


def placement(entries: list[dict[str, Any]], **result: Any) -> tuple[Axes, str]:
    return drawn(course.placement(record(result={"placements": entries, **result})))


def test_a_bar_is_a_client_in_its_role_s_colour_at_its_time() -> None:
    entries = [
        entry(0, 2.0, 8.0),
        entry(1, None, None, node=None, device_uuid=None, attempts=0),
        entry(2, 2.5, 4.0, role="generator", attempts=2),
        entry(3, 4.0, 9.0, role="generator", device_uuid=None),
    ]
    axes, caption = placement(entries, makespan={"seconds": 7.0, "lower_bound": 5.6})
    colours = [to_hex(colour) for row in axes.collections for colour in row.get_facecolor()]
    shown = {(b.x0, b.width): colour for b, colour in zip(bars(axes), colours, strict=True)}
    blue, orange = style.role_colour("classifier"), style.role_colour("generator")
    assert shown == {(0, 6): blue, (0.5, 1.5): orange, (2, 5): orange}
    assert sorted(text.get_text() for text in axes.texts) == ["0", "2", "3"]
    assert names(axes.yaxis) == ["node-a, GPU-8f3c2d1e", "node-a"]
    assert [line.get_xdata() for line in axes.lines] == [[5.6, 5.6]]
    assert legend(axes) == ["classifier", "generator", "tried again", "lower bound"]
    assert caption.endswith("Makespan 7.0 s, lower bound 5.6 s for any placement; ratio 1.25.")


@pytest.mark.parametrize("clients", [10, 200])
def test_bars_of_a_lane_never_overlap_however_many_there_are(clients: int) -> None:
    rng = np.random.default_rng(clients)
    starts, lengths = rng.uniform(0, 50, clients), rng.exponential(8, clients)
    spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    entries = [entry(k, *span, device_uuid=f"GPU-{k % 3}") for k, span in enumerate(spans)]
    axes, caption = placement(entries)
    assert len(bars(axes)) == clients
    lanes: dict[float, list[tuple[float, float]]] = {}
    for bar in bars(axes):
        lanes.setdefault(bar.y0, []).append((bar.x0, bar.x1))
    for lane in lanes.values():
        assert all(left[1] <= right[0] + 1e-9 for left, right in pairwise(sorted(lane)))
    assert bool(axes.texts) == (clients == 10)
    assert caption == "Where each client was trained and when."


def test_a_run_that_trained_nobody_has_no_placement() -> None:
    untrained = [entry(0, None, None), entry(1, 2.0, None)]  # of the store, and one that failed
    assert course.placement(record(result={"placements": untrained})) is None
