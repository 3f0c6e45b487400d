"""CINIC-10 from folders of PNG files, as its archive has them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fl.data.__main__ import prepare
from fl.data.datasets import load
from fl.data.files import CINIC10_CLASSES
from fl.errors import UserError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two images of each class in each part, whose pixels tell the class; one of them gray."""
    for part in ("train", "valid", "test"):
        for label, name in enumerate(CINIC10_CLASSES):
            folder = tmp_path / "CINIC-10" / part / name
            folder.mkdir(parents=True)
            for number, mode in enumerate(("RGB", "L")):
                pixels = np.full((32, 32, 3)[: 3 if mode == "RGB" else 2], 10 * label, np.uint8)
                Image.fromarray(pixels, mode).save(folder / f"image-{number}.png")
    return tmp_path


def test_training_images_are_those_of_train_and_valid(root: Path) -> None:
    found = load("cinic10", root)
    assert found.image_shape == (3, 32, 32)
    assert (len(found.train.labels), len(found.test.labels)) == (40, 20)
    for split in (found.train, found.test):
        assert set(split.labels.tolist()) == set(range(10))
        assert (split.images == 10 * split.labels[:, None, None, None]).all()
    again = load("cinic10", root)  # from the cache of arrays
    assert np.array_equal(again.train.images, found.train.images)


def test_an_image_that_is_replaced_is_seen(root: Path) -> None:
    load("cinic10", root)
    Image.new("RGB", (32, 32), (255, 0, 0)).save(root / "CINIC-10/test/airplane/image-0.png")
    assert load("cinic10", root).test.images[0].max() == 255


def test_an_archive_that_is_not_whole_is_refused(root: Path) -> None:
    (root / "CINIC-10/valid/truck/image-1.png").unlink()
    with pytest.raises(UserError, match=r"valid/truck holds 1 images, other classes 2: unpack"):
        load("cinic10", root)


def test_a_missing_class_is_named_with_what_to_do(root: Path) -> None:
    folder = root / "CINIC-10" / "valid" / "frog"
    for file in folder.iterdir():
        file.unlink()
    for refuse in (lambda: load("cinic10", root), lambda: prepare("cinic10", root)):
        with pytest.raises(UserError, match=r"valid/frog holds 0 .* 2: unpack .* to .*does not"):
            refuse()


def test_nothing_there_is_one_short_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds 0 images, .* unpack CINIC-10's archive"):
        load("cinic10", tmp_path)


@pytest.mark.parametrize("spoil", ["size", "bytes"])
def test_an_image_that_is_none_is_named(root: Path, spoil: str) -> None:
    file = root / "CINIC-10" / "train" / "cat" / "image-0.png"
    if spoil == "size":
        Image.new("RGB", (31, 32)).save(file)
    else:
        file.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"cat/image-0\.png"):
        load("cinic10", root)
