"""The look that plots share: names that find room, colours that mean one thing, whole pictures."""

import io
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from fl.report import style


def columns(names: list[str], width: float = style.HALF) -> tuple[Figure, Axes]:
    figure, axes = style.new_axes(width, 3.0)
    style.name_columns(figure, axes, names)
    return figure, axes


def shown(axes: Axes) -> dict[float, str]:
    labels = [label.get_text() for label in axes.get_xticklabels()]
    return dict(zip(axes.get_xticks().tolist(), labels, strict=True))


def test_each_known_role_has_a_colour_of_its_own_and_all_others_share_one() -> None:
    colours = [style.role_colour(role) for role in style.ROLES]
    assert len(set(colours)) == len(colours)
    assert style.role_colour("head") == style.role_colour("condenser")
    assert style.role_colour("head") not in colours


def test_names_that_find_room_are_all_shown_level() -> None:
    _, axes = columns(["a", "b", "c"])
    assert shown(axes) == {0: "a", 1: "b", 2: "c"}
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0}


def test_names_that_would_run_into_each_other_are_slanted() -> None:
    _, axes = columns(["a rather long name"] * 5)
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {45}


@pytest.mark.parametrize("name", ["$", "$x^$", "_^{"])
def test_a_name_is_no_formula(name: str) -> None:
    figure, axes = columns([name, "b"])
    style.name_rows(figure, axes, [name, "b"])
    figure.draw_without_rendering()
    assert shown(axes)[0] == name


def test_pictures_have_their_figures_size_and_the_same_bytes_every_time() -> None:
    def picture(kind: Callable[[Figure], bytes]) -> bytes:
        figure, axes = columns(["a-->", "<b>"])
        axes.set(title="written")
        return kind(figure)

    for kind in (style.png, style.svg):
        assert picture(kind) == picture(kind)
    image = Image.open(io.BytesIO(picture(style.png)), formats=["PNG"])
    assert image.size == (style.HALF * style.PIXELS_PER_INCH, 3.0 * style.PIXELS_PER_INCH)
    root = ElementTree.fromstring(picture(style.svg))
    assert root.attrib["width"] == f"{72 * style.HALF:g}pt"
    assert not [element for element in root.iter() if element.tag.endswith("}text")]
