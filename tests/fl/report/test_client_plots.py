"""Whether the plots of clients' accuracies show what they were given."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fl.report import style
from fl.report.plots import client_accuracy, client_spread
from fl.report.scores import Scores


def only_axes(figure: Figure) -> Axes:
    figure.draw_without_rendering()
    (axes,) = figure.axes
    return axes


def line(axes: Axes, label: str) -> Line2D:
    (found,) = [line for line in axes.lines if str(line.get_label()).startswith(label)]
    return found


def dots(axes: Axes, label: str) -> dict[float, float]:
    return dict(zip(*map(np.ndarray.tolist, line(axes, label).get_data()), strict=True))


def band(axes: Axes, label: str) -> dict[float, tuple[float, float]]:
    """The lower and the upper edge by round."""
    (found,) = [c for c in axes.collections if c.get_label() == label]
    assert isinstance(found, PolyCollection)
    corners = found.get_paths()[0].vertices
    rounds = sorted(set(corners[:, 0].tolist()))
    heights = {r: corners[corners[:, 0] == r, 1] for r in rounds}
    return {r: (round(float(h.min()), 9), round(float(h.max()), 9)) for r, h in heights.items()}


def named(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def legend(axes: Axes) -> list[str]:
    shown = axes.get_legend()
    assert shown is not None
    return [text.get_text() for text in shown.get_texts()]


def test_bands_and_mean_are_of_the_clients_that_were_scored() -> None:
    rounds = {1: [0.0, None, 0.1, 0.2], 2: [None, None, 0.4, 0.8]}
    axes = only_axes(client_spread(rounds))
    assert band(axes, "worst to best") == {1: (0.0, 0.2), 2: (0.4, 0.8)}
    assert band(axes, "10th to 90th percentile") == {1: (0.02, 0.18), 2: (0.44, 0.76)}
    assert dots(axes, "mean") == pytest.approx({1: 0.1, 2: 0.6})
    low, high = axes.get_ylim()
    assert low <= 0.0 < 0.8 <= high


def test_one_round_of_one_client_has_a_width_and_its_number() -> None:
    axes = only_axes(client_spread({3: [0.5]}))
    assert set(band(axes, "worst to best").values()) == {(0.5, 0.5)}
    low, high = axes.get_xlim()
    assert high - low > 0.5
    inside = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert inside == [3]


def test_a_thousand_clients_in_a_hundred_rounds() -> None:
    shares = np.random.default_rng(0).random((100, 1000)).tolist()
    axes = only_axes(client_spread(dict(enumerate(shares, start=1))))
    assert len(dots(axes, "mean")) == 100


def test_clients_stand_by_their_accuracy_with_the_worst_tenth_marked() -> None:
    accuracies: list[float | None] = [k / 40 for k in range(40, 19, -1)]
    accuracies[4] = None
    axes = only_axes(client_accuracy(Scores(accuracies)))
    assert dots(axes, "worst") == pytest.approx({0: 20 / 40, 1: 21 / 40})
    assert line(axes, "worst").get_color() == style.WORST
    assert len(dots(axes, "client")) == 18
    assert named(axes) == [str(k) for k in range(20, -1, -1) if k != 4]
    mean = Scores(accuracies).mean
    assert list(line(axes, "mean").get_ydata()) == [mean, mean]
    assert not any("alone" in label for label in legend(axes))


def test_the_same_client_alone_stands_in_its_own_column() -> None:
    axes = only_axes(client_accuracy(Scores([0.9, 0.5, None]), Scores([None, 0.95, 0.7])))
    assert named(axes) == ["1", "0"]
    alone = dots(axes, "the same client alone")
    assert alone[0] == 0.95
    assert np.isnan(alone[1])
    low, high = axes.get_ylim()
    assert low <= 0.5 < 0.95 <= high
    assert "the same client alone" in legend(axes)


def test_one_client_is_the_worst_and_no_other_is_named() -> None:
    axes = only_axes(client_accuracy(Scores([0.5])))
    assert legend(axes) == ["worst tenth", "mean 50.0%"]


def test_more_clients_than_find_room_are_counted_not_named() -> None:
    shares = np.random.default_rng(0).random((2, 1000)).tolist()
    figure = client_accuracy(Scores(shares[0]), Scores(shares[1]))
    axes = only_axes(figure)
    assert named(axes) == []
    assert axes.get_xlabel() == "1,000 clients, the worst first"
    assert figure.get_figwidth() == style.WIDE
    assert len(dots(axes, "worst")) == 100


@pytest.mark.parametrize("clients", [1, 6, 16, 17])
def test_the_legend_stays_on_the_page(clients: int) -> None:
    shares = [0.5 + k / 100 for k in range(clients)]
    figure = client_accuracy(Scores(shares), Scores(shares))
    axes = only_axes(figure)
    shown = axes.get_legend()
    assert shown is not None
    box = shown.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert box.y1 <= figure.bbox.height
