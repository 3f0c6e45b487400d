"""Which pictures a report has: those for which the run has left data."""

import io
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fl.report import style
from fl.report.figures import pictures
from fl.report.read import RunRecord, read_run
from tests.fl.report.conftest import MakeRun, record


@pytest.fixture
def whole(make_run: MakeRun) -> RunRecord:
    return read_run(make_run())


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes no files of figures, which takes most of the time."""

    def nothing(figure: Figure) -> bytes:
        return b""

    monkeypatch.setattr(style, "svg", nothing)
    monkeypatch.setattr(style, "png", nothing)


def shown(run: RunRecord) -> list[str]:
    return [picture.file for picture in pictures(run)]


@pytest.mark.usefixtures("fast")
def test_what_is_missing_takes_its_own_picture_with_it(whole: RunRecord) -> None:
    assert shown(record()) == []
    files = ["accuracy", "time", "per_class", "bytes", "partition", "samples"]
    assert [file.split(".")[0] for file in shown(whole)] == files
    assert shown(replace(whole, samples=None)) == shown(whole)[:-1]
    assert shown(replace(whole, accuracy={})) == shown(whole)[1:]
    assert {*shown(whole)} - {*shown(replace(whole, result={}))} == {"per_class.svg", "time.svg"}


@pytest.mark.usefixtures("fast")
def test_clients_that_are_scored_have_their_picture_after_the_curve(make_scored: MakeRun) -> None:
    files = shown(read_run(make_scored()))
    assert files[:3] == ["accuracy.svg", "client_accuracy.svg", "rounds.svg"]


@pytest.mark.usefixtures("fast")
def test_pictures_of_many_things_take_the_pages_whole_width() -> None:
    few, many = (
        next(pictures(record(result={"per_class_accuracy": [0.5] * n, "accuracy": 0.5})))
        for n in (10, 47)
    )
    assert (few.wide, many.wide) == (False, True)
    assert (few.width, many.width) == (500, 1040)


def test_drawings_are_svg_and_images_are_png_twice_as_large_as_shown(whole: RunRecord) -> None:
    *_, time, samples = pictures(replace(whole, accuracy={}, clients=[], partition=None))
    assert (time.file, time.kind) == ("per_class.svg", "image/svg+xml")
    assert time.content.startswith(b"<?xml")
    assert (samples.file, samples.kind) == ("samples.png", "image/png")
    image = Image.open(io.BytesIO(samples.content), formats=["PNG"])
    assert image.width == pytest.approx(2 * samples.width, abs=2)
    assert np.asarray(image.convert("L")).std() > 1  # something is drawn
