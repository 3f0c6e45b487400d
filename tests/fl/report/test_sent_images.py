"""The picture of what left clients: each image above its own real one, and honest words."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from fl.report import style
from fl.report.mosaic import MISSING
from fl.report.read import SentImages
from fl.report.sent_images import sent_grid, tell_sent


def sent(*labels: int, channels: int = 1) -> SentImages:
    """Images whose pixels are 10 times their place, sent by clients 5, 6, ...; the real ones of the
    first are the same, of all others one grey level off."""
    values = 10 * np.arange(1, len(labels) + 1, dtype=np.uint8)[:, None, None, None]
    images = values.repeat(channels, 1).repeat(8, 2).repeat(8, 3)
    real = images.copy()
    real[1:] += 1
    return SentImages(images, real, np.array(labels), np.arange(5, 5 + len(labels)))


def below(figure: Figure, row: int) -> list[str]:
    """What stands below the real images of a row of clients."""
    return [tick.get_text() for tick in figure.axes[2 * row + 1].get_xticklabels()]


def shades(figure: Figure, strip: int) -> list[int]:
    """The middle of each image of a strip."""
    (drawn,) = figure.axes[strip].images
    picture = np.asarray(drawn.get_array())
    return [int(value) for value in picture[4, 4::9, 0]]


@pytest.mark.parametrize("channels", [1, 3])
def test_each_image_is_above_its_real_one_in_its_classs_column(channels: int) -> None:
    figure = sent_grid(sent(2, 0, 2, channels=channels), ["zero", "one", "two"])
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["zero", "two"]
    assert [shades(figure, strip) for strip in range(4)] == [
        [20, 10],
        [21, 10],
        [MISSING, 30],
        [MISSING, 31],
    ]
    assert below(figure, 0) == ["client 6\n0.0039", "client 5\n0"]
    assert below(figure, 1) == ["", "client 7\n0.0039"]


def test_ten_classes_with_long_names_fit_the_page() -> None:
    figure = sent_grid(sent(*range(10)), ["aquarium $fish^$"] * 10)
    assert figure.get_figwidth() <= style.WIDE + 0.01
    assert style.png(figure)


def test_it_is_said_how_near_all_are_and_how_many_of_those_shown_are_real() -> None:
    told = {"images": 1800, "steps": 1.0, "nearest_real": 0.000071}
    assert tell_sent(sent(0, 0), told) == (
        "1,800 images, after 1 step of distillation; their mean distance to the nearest real one "
        "of their class at their client is 0.000071 of the pixels' range (0: the very image). "
        "Shown are first images of a class from a client, each above the nearest real one, with "
        "their distance; 1 of these 2 are the very image, bit for bit."
    )
    assert "after 3,000 steps of" in tell_sent(sent(0), told | {"steps": 3000.0})
    plain = tell_sent(sent(0), told | {"steps": 0.0, "nearest_real": 0.0})
    assert "without distillation; their mean" in plain
    assert "is 0 of the pixels' range" in plain
    assert tell_sent(sent(0), None).startswith("Shown are")
