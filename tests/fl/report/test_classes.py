"""Figures by class: bars, the confusion, and images."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from fl.report import classes, style
from fl.report.classes import mosaic, most_confused
from fl.report.read import Partition
from tests.fl.report.conftest import drawn, names, record

COUNTS = [[9, 1, 0], [0, 0, 0], [0, 5, 5]]
NAMES = ["cat", "$\\frac", "dog"]
NAMED = Partition("iid", "9c1f2ab", np.zeros((1, 3), np.int64), NAMES, ["classifier"])


def test_bars_are_the_accuracies_and_the_line_is_the_overall_one() -> None:
    result = {"per_class_accuracy": [0.5, None, 1.0], "accuracy": 0.75}
    axes, _ = drawn(classes.by_class(record(result=result, partition=NAMED)))
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([0.5, np.nan, 1.0], nan_ok=True)
    assert list(axes.lines[0].get_ydata()) == [0.75, 0.75]
    assert names(axes.xaxis) == NAMES


def test_domains_have_their_own_names() -> None:
    result = {"per_domain_accuracy": {"photo": 0.5, "sketch": 0.25}, "accuracy": 0.4}
    axes, _ = drawn(classes.by_domain(record(result=result)))
    assert names(axes.xaxis) == ["photo", "sketch"]
    assert [bar.get_height() for bar in axes.patches] == [0.5, 0.25]


# The confusion.


def test_right_and_wrong_have_their_colours_darker_with_their_share_of_the_class() -> None:
    axes, caption = drawn(classes.confusion(record(result={"confusion": [[10, 0], [10, 0]]})))
    shades = np.asarray(axes.images[0].get_array())
    assert shades[0, 0].tolist() == pytest.approx(to_rgb(style.GLOBAL_MODEL))
    assert shades[1, 0].tolist() == pytest.approx(to_rgb(style.WORST))
    assert shades[0, 1].tolist() == [1, 1, 1]
    assert caption.endswith("Most often 1 is taken for 0 (10 of 10).")


def test_few_classes_have_a_number_in_each_cell_that_is_not_empty() -> None:
    run = record(result={"confusion": COUNTS}, partition=NAMED)
    axes, _ = drawn(classes.confusion(run))
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts == {(0, 0): "9", (1, 0): "1", (1, 2): "5", (2, 2): "5"}
    assert names(axes.yaxis) == NAMES
    assert np.isfinite(np.asarray(axes.images[0].get_array())).all()  # without a test sample too


def test_the_worst_mistakes_are_told_the_most_frequent_first() -> None:
    assert most_confused(np.array(COUNTS), ["cat", "cow", "dog"]) == (
        "dog is taken for cow (5 of 10), cat for cow (1 of 10)"
    )
    assert most_confused(np.diag([3, 4]), ["a", "b"]) == ""


# Images.


def images(count: int) -> np.ndarray:
    return np.ones((count, 3, 1, 8, 8), np.uint8)


def test_samples_are_counted_and_show_real_images_if_the_run_kept_some() -> None:
    groups = {"before": images(3), "after": images(3)}
    axes, caption = drawn(classes.samples(record(samples=groups, partition=NAMED)))
    assert names(axes.xaxis) == ["raw synthetic", "kept by filter"]
    assert names(axes.yaxis) == NAMES
    assert caption == "Each row is a class: raw synthetic, kept by filter."
    result = {"synthetic": {"generated": 3000, "kept": 2400}}
    run = record(samples=groups | {"real_images": images(3)}, result=result)
    axes, caption = drawn(classes.samples(run))
    assert names(axes.xaxis) == ["real images", "raw synthetic", "kept by filter"]
    assert caption.endswith("(2,400 of 3,000 in the whole run).")


def test_images_that_left_clients_are_shown_by_class() -> None:
    sent = {"images": np.ones((3, 1, 8, 8), np.uint8), "labels": np.array([2, 0, 2])}
    axes, _ = drawn(classes.sent(record(sent=sent, partition=NAMED)))
    assert names(axes.yaxis) == ["cat", "dog"]


@pytest.mark.parametrize("channels", [1, 3])
def test_the_mosaic_has_each_image_in_its_row_and_group(channels: int) -> None:
    size, examples = 28, 4
    groups = [np.full((5, examples, channels, size, size), 7, np.uint8) for _ in range(3)]
    known = np.random.default_rng(0).integers(1, 256, (channels, size, size), dtype=np.uint8)
    groups[1][3, 2] = known
    picture = mosaic(groups)
    gap = size // 14
    pitch = size + gap
    top, left = 3 * pitch, examples * pitch + size // 2 + 2 * pitch
    tile = picture[top : top + size, left : left + size]
    assert (tile == np.moveaxis(known, 0, -1)).all()
    assert (picture[top : top + size, left - gap : left] == 255).all()
    assert (picture[:size, :size] == 7).all()
