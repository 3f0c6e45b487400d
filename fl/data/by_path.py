"""Data of the user's own by path: an .npz file, or a folder of images by class."""

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fl.data.arrays import read_arrays
from fl.data.datasets import Dataset
from fl.data.image_files import class_folders, image_files, read_image
from fl.data.own import as_dataset
from fl.errors import UserError

ARRAYS = (("x_train", "y_train", "x_test", "y_test"), ("images", "labels"))
"""Names of an .npz file's arrays: with a test split as Keras has them, or without."""
LAYOUT = "expected FOLDER/class/image, or FOLDER/train/class/image beside FOLDER/test/class/image"


def is_path(name: str) -> bool:
    """Whether it names a file or folder and not a data set."""
    return "/" in name or name.endswith(".npz")


def read_path(name: str) -> Dataset:
    """The data set at that path; read once for a file that does not change.

    Raises:
        UserError: one line, for whatever is wrong.
    """
    path = Path(name).expanduser()
    if not path.exists():
        raise UserError(f"dataset {name}: there is no such file or folder")
    return _read(path, _state(path))


def _state(path: Path) -> str:
    """What changes with the file, or with any file of the folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        found = file.stat(follow_symlinks=True) if file.exists() else None
        stamp = found and (found.st_mtime_ns, found.st_size)
        digest.update(f"{file} {stamp}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _read(path: Path, state: str) -> Dataset:
    data = _folder(path) if path.is_dir() else _npz(path)
    return replace(as_dataset(str(path), data), name=path.stem)


def _npz(path: Path) -> Any:
    found = read_arrays(path, *ARRAYS)
    if not all(array.ndim for array in found):
        raise UserError(f"{path} has one number for an array; expected N images and N labels")
    return (found[:2], found[2:]) if len(found) == 4 else tuple(found)


def _folder(path: Path) -> Any:
    if (path / "train").is_dir() and (path / "test").is_dir():
        classes = _classes(path / "train") + _classes(path / "test")
        return {part: _Images(path / part, sorted(set(classes))) for part in ("train", "test")}
    return _Images(path, _classes(path))


def _classes(folder: Path) -> list[str]:
    found = class_folders(folder)
    if len(found) < 2:
        raise UserError(f"{folder} holds {len(found)} folders with images; {LAYOUT}")
    return found


class _Images:
    """A data set object over a folder of images by class, read as they are asked for."""

    def __init__(self, folder: Path, classes: list[str]) -> None:
        self.classes = classes
        self._files = [
            (file, label)
            for label, name in enumerate(classes)
            if (folder / name).is_dir()
            for file in image_files(folder / name)
        ]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        file, label = self._files[index]
        return read_image(file), label
