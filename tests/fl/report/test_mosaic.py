"""Whether the mosaic shows each image where it belongs."""

import numpy as np
import pytest

from fl.report import style
from fl.report.mosaic import MISSING, mosaic, sample_grid, tile_gap


@pytest.mark.parametrize("channels", [1, 3])
def test_the_mosaic_places_an_image_in_its_class_group_and_turn(channels: int) -> None:
    size, examples = 28, 4
    groups = [np.full((5, examples, channels, size, size), 7, np.uint8) for _ in range(3)]
    known = np.random.default_rng(0).integers(1, 256, (channels, size, size), dtype=np.uint8)
    groups[1][3, 2] = known
    picture = mosaic(groups)
    pitch = size + tile_gap(size)
    top, left = 3 * pitch, examples * pitch + size // 2 + 2 * pitch
    tile = picture[top : top + size, left : left + size]
    assert (tile == np.moveaxis(known, 0, -1)).all()
    assert (picture[top : top + size, left - tile_gap(size) : left] == 255).all()
    assert (picture[:size, :size] == 7).all()


def test_images_that_do_not_exist_are_pale_not_black() -> None:
    groups = [np.ones((2, 3, 1, 8, 8), np.uint8) for _ in range(3)]
    groups[2][1, 2] = 0
    assert (mosaic(groups)[9:17, -9:-1] == MISSING).all()


@pytest.mark.parametrize(("classes", "columns"), [(10, 1), (47, 2)])
def test_the_grid_names_every_class_and_fits_the_page(classes: int, columns: int) -> None:
    images = np.ones((classes, 8, 1, 28, 28), np.uint8)
    names = [f"name {index}" for index in range(classes)]
    figure = sample_grid(dict.fromkeys(("real", "raw synthetic", "kept"), images), names)
    assert len(figure.axes) == columns
    labels = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert labels == names
    assert figure.get_figwidth() <= style.WIDE + 0.01


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_grid_names_its_groups(count: int) -> None:
    groups = {f"group {index}": np.ones((2, 3, 1, 8, 8), np.uint8) for index in range(count)}
    (axes,) = sample_grid(groups, ["a $", "b"]).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == list(groups)
