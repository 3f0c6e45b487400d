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


def test_a_cell_of_the_partition_is_darker_with_more_samples_in_its_role_s_colour() -> None:
    counts = np.array([[10, 0, 40], [5, 20, 1]])
    figure = plots.partition_map(counts, ["classifier", "generator"], ["a", "b", "c"])
    (image,) = figure.axes[0].images
    shades = np.asarray(image.get_array())
    assert shades.shape == (3, 2, 3)
    assert shades[1, 0].tolist() == [1, 1, 1], "the client has none of the class"
    assert shades[2, 0].tolist() == pytest.approx(to_rgb(style.role_colour("classifier")))
    assert shades[2, 0].sum() < shades[0, 0].sum() < 3
    part = 1 - np.sqrt(0.5) * (1 - np.array(to_rgb(style.role_colour("generator"))))
    assert shades[1, 1].tolist() == pytest.approx(part.tolist())


@pytest.mark.parametrize("clients", [1, 600])
def test_a_partition_of_any_number_of_clients_is_drawn(clients: int) -> None:
    counts = np.full((clients, 3), 7)
    figure = plots.partition_map(counts, ["classifier"] * clients, ["a", "$\\frac", "c"])
    assert len(style.svg(figure)) < 100_000
    assert figure.axes[0].get_xlim() == (-0.5, clients - 0.5)


def test_an_empty_partition_is_white() -> None:
    (axes,) = plots.partition_map(np.zeros((2, 3), np.int64), ["classifier"] * 2, list("abc")).axes
    assert (np.asarray(axes.images[0].get_array()) == 1).all()


def test_uploads_that_differ_much_go_on_a_logarithmic_axis() -> None:
    alike = plots.client_bytes({0: 100, 1: 300}, ["classifier"] * 2)
    assert alike.axes[0].get_yscale() == "linear"
    (bars,) = alike.axes[0].collections
    assert [path.vertices[1, 1] for path in bars.get_paths()] == [100, 300]
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
