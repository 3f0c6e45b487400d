"""Image files: pixels are exact or refused by name, and what is left out is said."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fl.data import files as module
from fl.data.catalogue import read_path
from fl.data.files import class_folders, image_files, pixels, read_image
from fl.data.own import as_dataset
from fl.errors import UserError

GREY = np.arange(20, dtype=np.uint8).reshape(5, 4) * 12
COLOUR = np.stack([GREY, GREY[::-1], 255 - GREY], axis=2)


def palette() -> Image.Image:
    """Twenty colours that are not the numbers by which the palette has them."""
    image = Image.fromarray(COLOUR).quantize(256)
    assert image.mode == "P"
    return image


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".webp"])
def test_grey_and_colour_are_as_they_were_written(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(COLOUR).save(tmp_path / f"c{suffix}", lossless=True)
    assert np.array_equal(read_image(tmp_path / f"c{suffix}"), COLOUR)
    if suffix != ".webp":  # which has no grey
        Image.fromarray(GREY).save(tmp_path / f"g{suffix}")
        assert np.array_equal(read_image(tmp_path / f"g{suffix}"), GREY)


def test_of_a_palette_the_colours_count_and_not_their_numbers(tmp_path: Path) -> None:
    palette().save(tmp_path / "p.png")
    assert np.array_equal(read_image(tmp_path / "p.png"), np.asarray(palette().convert("RGB")))
    found = as_dataset("x", [(palette(), 0), (palette(), 1)] * 3)
    assert found.image_shape == (3, 5, 4)
    colours = np.asarray(palette().convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(found.train.images[0], colours)


def test_what_has_more_than_8_bits_or_is_transparent_is_refused_by_name(tmp_path: Path) -> None:
    Image.fromarray(GREY.astype(np.uint16) * 256).save(tmp_path / "deep.png")
    with pytest.raises(UserError, match=r"deep.png has pixels of mode I;16; allowed: 8 bits"):
        read_image(tmp_path / "deep.png")
    clear = np.dstack([COLOUR, np.full(GREY.shape, 255, np.uint8)])
    assert np.array_equal(pixels(Image.fromarray(clear), "x"), COLOUR)
    clear[0, 0, 3] = 9
    with pytest.raises(UserError, match="image x has transparent pixels"):
        pixels(Image.fromarray(clear), "x")
    with pytest.raises(UserError, match="mode CMYK"):
        pixels(Image.fromarray(COLOUR).convert("CMYK"), "x")


def test_a_format_that_runs_another_program_is_not_read_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n")
    with pytest.raises(UserError, match=r"cannot read image .*x.png: cannot identify"):
        read_image(tmp_path / "x.png")


def test_too_many_pixels_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(GREY).save(tmp_path / "x.png")
    monkeypatch.setattr(module, "MOST_PIXELS", 19)
    with pytest.raises(UserError, match="has 4x5 pixels; allowed: 19"):
        read_image(tmp_path / "x.png")


def tree(folder: Path) -> Path:
    for name in ("cat", "dog", ".ipynb_checkpoints", "__MACOSX"):
        (folder / name).mkdir(parents=True)
        for k in range(4):
            Image.fromarray(GREY + k).save(folder / name / f"{k}.png")
    (folder / "empty").mkdir()
    (folder / "cat" / "notes.txt").write_text("no image")
    (folder / "cat" / "more").mkdir()
    os.mkfifo(folder / "cat" / "pipe.png")
    return folder


def test_hidden_and_empty_folders_and_other_files_are_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert class_folders(tree(tmp_path)) == ["cat", "dog"]
    assert "images: .ipynb_checkpoints, __MACOSX, empty" in caplog.text
    caplog.clear()
    assert [file.name for file in image_files(tmp_path / "cat")] == [f"{k}.png" for k in range(4)]
    assert "ignored: notes.txt" in caplog.text
    found = read_path(str(tmp_path))
    assert (found.class_names, found.num_classes) == (("cat", "dog"), 2)


def test_grey_among_coloured_images_becomes_coloured(tmp_path: Path) -> None:
    folder = tree(tmp_path)
    Image.fromarray(COLOUR).save(folder / "dog" / "9.png")
    found = read_path(str(folder))
    assert found.image_shape == (3, 5, 4)
    every = np.concatenate([found.train.images, found.test.images])
    grey = [image for image in every if (image == image[:1]).all()]
    assert len(grey) == len(every) - 1


def test_a_folder_whose_image_was_edited_is_read_again(tmp_path: Path) -> None:
    folder = tree(tmp_path)
    before = read_path(str(folder))
    for file in (folder / "dog").iterdir():
        Image.fromarray(255 - GREY).save(file)
        os.utime(file, (1, 1))
    after = read_path(str(folder))
    assert not np.array_equal(before.train.images, after.train.images)


def test_labels_in_a_column_are_labels() -> None:
    images, labels = np.stack([COLOUR] * 6), np.arange(6)[:, None] % 2
    column, plain = as_dataset("x", (images, labels)), as_dataset("x", (images, labels[:, 0]))
    assert np.array_equal(column.train.labels, plain.train.labels)
