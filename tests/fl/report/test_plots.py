"""Whether the plots show the data they were given."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from fl.report import plots, style
from tests.fl.report.conftest import CURVE, START


def test_the_curve_is_the_epochs_with_the_start_as_epoch_zero() -> None:
    (axes,) = plots.accuracy_curve(CURVE, START).axes
    line, start, best, last = axes.lines
    assert dict(zip(*line.get_data(), strict=True)) == {0: START} | CURVE
    assert start.get_data() == ([0], [START])
    assert best.get_data() == ([3], [0.90])
    assert last.get_data() == ([4], [0.88])


def test_a_best_last_epoch_is_marked_once_and_a_start_may_be_unknown() -> None:
    (axes,) = plots.accuracy_curve({1: 0.5, 2: 0.6}).axes
    line, last = axes.lines
    assert list(line.get_xdata()) == [1, 2]
    assert last.get_data() == ([2], [0.6])


@pytest.mark.parametrize("curve", [{1: 0.951}, {1: 0.999, 2: 1.0}, {1: 0.0, 2: 0.001}])
def test_a_flat_curve_is_not_blown_up(curve: dict[int, float]) -> None:
    (axes,) = plots.accuracy_curve(curve).axes
    low, high = axes.get_ylim()
    assert low <= min(curve.values()) <= max(curve.values()) <= high
    assert high - low > 0.02


def test_bubble_areas_are_proportional_to_the_counts() -> None:
    counts = np.array([[10, 0, 40], [5, 20, 1]])
    figure = plots.partition_bubbles(counts, ["classifier", "generator"], ["a", "b", "c"])
    (bubbles,) = figure.axes[0].collections
    places = [tuple(place) for place in np.asarray(bubbles.get_offsets()).astype(int)]
    assert places == [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]
    areas = bubbles.get_sizes()
    assert areas / areas[0] == pytest.approx([1, 4, 0.5, 2, 0.1])
    blue, orange = to_rgb(style.role_colour("classifier")), to_rgb(style.role_colour("generator"))
    colours = [tuple(colour[:3]) for colour in bubbles.get_facecolor()]
    assert colours == [blue, blue, orange, orange, orange]


@pytest.mark.parametrize("clients", [151, 300, 1000])
def test_of_many_clients_a_map_shows_who_holds_what(clients: int) -> None:
    counts = np.zeros((clients, 3), dtype=np.int64)
    counts[:, 1], counts[-1, 2] = 4, 1000
    figure = plots.partition_map(counts, ["a", "b", "c"])
    (image,) = figure.axes[0].images
    shades = np.asarray(image.get_array())
    columns = -(-clients // plots.per_column(clients))
    assert shades.shape == (3, columns, 3)
    assert columns <= plots.MOST_COLUMNS
    assert (shades[0] == 1).all(), "nobody has any"
    assert np.ptp(shades[1, :, 0]) < 1e-9, "all have as many"
    assert (shades[2, :-1] == 1).all()
    assert (shades[2, -1] < shades[1, 0]).all()
    assert shades.max() <= 1
    assert shades.min() >= 0
    (left, right) = figure.axes[0].get_xlim()
    assert (left, right) == (-0.5, clients - 0.5)


def test_no_bubble_reaches_into_its_neighbours_cell() -> None:
    figure = plots.partition_bubbles(
        np.full((100, 47), 9), ["classifier"] * 100, [str(i) for i in range(47)]
    )
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (bubbles,) = axes.collections
    left, right = axes.transData.transform([(0, 0), (1, 0)])[:, 0]
    assert np.sqrt(bubbles.get_sizes().max()) <= (right - left) * 72 / figure.dpi * 1.05


def test_uploads_that_differ_much_go_on_a_logarithmic_axis() -> None:
    alike = plots.client_bytes({0: 100, 1: 300}, ["classifier"] * 2)
    assert alike.axes[0].get_yscale() == "linear"
    (bars,) = alike.axes[0].collections
    assert [path.get_extents().y1 for path in bars.get_paths()] == [100, 300]
    assert alike.axes[0].get_ylim()[1] > 300
    apart = plots.client_bytes({0: 100, 1: 30_000, 7: 0}, ["classifier", "generator", "generator"])
    assert apart.axes[0].get_yscale() == "log"
    assert [label.get_text() for label in apart.axes[0].get_xticklabels()] == ["0", "1", "7"]


def test_time_bars_are_the_phases_and_what_is_left_of_the_total() -> None:
    (axes,) = plots.phase_times({"local": 4.0, "filter": 0.0, "fusion": 3.0, "total": 9.0}).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    widths = [bar.get_width() for bar in axes.patches]
    assert dict(zip(names, widths, strict=True)) == {"local": 4.0, "fusion": 3.0, "other": 2.0}


def test_class_bars_are_the_accuracies_and_the_line_is_the_overall_one() -> None:
    (axes,) = plots.class_accuracy([0.5, None, 1.0], ["a", "b", "c"], 0.75).axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([0.5, np.nan, 1.0], nan_ok=True)
    assert list(axes.lines[0].get_ydata()) == [0.75, 0.75]
