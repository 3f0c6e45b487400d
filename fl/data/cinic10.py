"""CINIC-10: CIFAR-10's classes with ImageNet's images beside, a folder of PNG files per class.

Its archive, unpacked as ``CINIC-10`` below the data root, has ``train``, ``valid`` and ``test`` of
90,000 images each. The first two are the training split here, as only the last is for tests.
"""

from pathlib import Path

import numpy as np

from fl.data.image_files import read_image
from fl.errors import UserError

FOLDER = "CINIC-10"
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
SIDE = 32


def find_missing(root: Path) -> list[Path]:
    """The folders of classes that there should be and are not, or that hold no image."""
    folders = [root / FOLDER / s / c for s in ("train", "valid", "test") for c in CLASSES]
    return [folder for folder in folders if not any(folder.glob("*.png"))]


def read_split(root: Path, *, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 (N, 3, 32, 32), and labels, int64 (N,), of one split.

    Raises:
        UserError: names an image that cannot be read or is of another size, or a class with fewer
            images than the others.
    """
    files = [
        (file, label)
        for part in (("train", "valid") if train else ("test",))
        for label, found in enumerate(_listed(root / FOLDER / part))
        for file in found
    ]
    images = np.empty((len(files), 3, SIDE, SIDE), np.uint8)
    for row, (file, _) in enumerate(files):
        images[row] = _read(file)
    return images, np.array([label for _, label in files], np.int64)


def _listed(folder: Path) -> list[list[Path]]:
    """The images of each class; all classes have as many, else the archive is not whole."""
    found = [sorted((folder / name).glob("*.png")) for name in CLASSES]
    counts = {len(files): name for files, name in zip(found, CLASSES, strict=True)}
    if len(counts) > 1:
        fewest = min(counts)
        raise UserError(
            f"{folder / counts[fewest]} holds {fewest} images, other classes {max(counts)}: "
            "unpack the whole archive"
        )
    return found


def _read(file: Path) -> np.ndarray:
    """An image as (3, 32, 32); some files are gray."""
    image = read_image(file)
    if image.shape[:2] != (SIDE, SIDE):
        raise UserError(f"{file} is {image.shape[1]}x{image.shape[0]}; allowed: 32x32")
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=2)
    return image.transpose(2, 0, 1)
