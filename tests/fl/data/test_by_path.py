"""A user's data by path: an .npz file, or a folder of images by class."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fl.data.own import is_path, read_path
from fl.errors import UserError

IMAGES = np.random.default_rng(0).integers(0, 256, (10, 4, 4), dtype=np.uint8)
LABELS = np.arange(10) % 2


def folder(path: Path, *parts: str) -> Path:
    """Two classes of five images, in each part."""
    for part in parts or ("",):
        for label, name in enumerate(("cat", "dog")):
            home = path / part / name
            home.mkdir(parents=True)
            for number in range(5):
                Image.fromarray(np.full((4, 4, 3), 100 * label + number, np.uint8)).save(
                    home / f"{number}.png"
                )
    return path


def test_what_is_a_path() -> None:
    assert all(map(is_path, ("a/b", "b.npz", "./b")))
    assert not is_path("mnist")


def test_arrays_of_a_file_with_and_without_a_test_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", images=IMAGES, labels=LABELS)
    np.savez(
        tmp_path / "two.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:4], y_test=LABELS[:4]
    )
    assert len(read_path(str(tmp_path / "one.npz")).train.labels) == 8
    whole = read_path(str(tmp_path / "two.npz"))
    assert np.array_equal(whole.train.images[:, 0], IMAGES)
    assert np.array_equal(whole.test.labels, LABELS[:4])


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    np.savez(path, images=IMAGES, labels=LABELS)
    read_path(str(path))
    np.savez(path, images=IMAGES[:5], labels=LABELS[:5])
    assert len(read_path(str(path)).train.labels) == 4


def test_folders_flat_or_with_train_and_test(tmp_path: Path) -> None:
    flat = read_path(str(folder(tmp_path / "flat")))
    assert (len(flat.train.labels), flat.class_names) == (8, ("cat", "dog"))
    split = read_path(str(folder(tmp_path / "split", "train", "test")))
    assert (len(split.train.labels), len(split.test.labels)) == (10, 10)
    assert (split.train.images[split.train.labels == 1] >= 100).all()


def test_what_is_wrong_is_one_line_with_what_was_expected(tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", pixels=IMAGES)
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    (tmp_path / "one" / "cat").mkdir(parents=True)
    (folder(tmp_path / "spoilt") / "cat" / "9.png").write_bytes(b"no image")
    for name, line in {
        "odd.npz": "has the arrays pixels; expected x_train, y_train, x_test, y_test; or images",
        "bad.npz": "cannot read .*bad.npz",
        "none.npz": "there is no such file or folder",
        "one": "holds 0 folders with images; expected FOLDER/class/image",
        "spoilt": "cannot read image .*9.png",
    }.items():
        with pytest.raises(UserError, match=line) as caught:
            read_path(str(tmp_path / name))
        assert "\n" not in str(caught.value)
