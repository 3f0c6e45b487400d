"""The confusion matrix as a picture: shades, numbers, names, and its worst mistakes in words."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from fl.report import style
from fl.report.figures import most_confused
from fl.report.plots import confusion_matrix

COUNTS = np.array([[9, 1, 0], [0, 0, 0], [0, 5, 5]])
NAMES = ["cat", "$\\frac", "dog"]


def shades(figure: Figure) -> np.ndarray:
    return np.asarray(figure.axes[0].images[0].get_array())


def test_right_and_wrong_have_their_colours_darker_with_their_share_of_the_class() -> None:
    found = shades(confusion_matrix(np.array([[10, 0], [10, 0]]), ["a", "b"]))
    assert found[0, 0].tolist() == pytest.approx(to_rgb(style.GLOBAL_MODEL))
    assert found[1, 0].tolist() == pytest.approx(to_rgb(style.WORST))
    assert found[0, 1].tolist() == [1, 1, 1]
    own = shades(confusion_matrix(COUNTS, NAMES))
    assert own[2, 1].sum() < own[0, 1].sum() < 3  # 50% is darker than 10%
    assert np.isfinite(own).all()  # of a class without a test sample too


def test_few_classes_have_a_number_in_each_cell_that_is_not_empty() -> None:
    figure = confusion_matrix(COUNTS, NAMES)
    figure.draw_without_rendering()
    texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert texts == {(0, 0): "9", (1, 0): "1", (1, 2): "5", (2, 2): "5"}
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == NAMES


@pytest.mark.parametrize("classes", [62, 100])
def test_many_classes_take_the_pages_width_without_numbers(classes: int) -> None:
    figure = confusion_matrix(np.eye(classes, dtype=np.int64), [f"c{k}" for k in range(classes)])
    assert figure.get_figwidth() > style.HALF + 1
    assert not figure.axes[0].texts
    assert shades(figure).shape == (classes, classes, 3)


def test_the_worst_mistakes_are_told_the_most_frequent_first() -> None:
    assert most_confused(COUNTS, ["cat", "cow", "dog"]) == (
        "dog is taken for cow (5 of 10), cat for cow (1 of 10)"
    )
    assert most_confused(np.diag([3, 4]), ["a", "b"]) == ""
