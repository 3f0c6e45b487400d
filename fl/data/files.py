"""The data sets' own files: read, and checked before torchvision fails on what is missing."""

import math
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fl.data.image_files import read_image
from fl.errors import UserError

# CINIC-10: CIFAR-10's classes with ImageNet's images beside, a folder of PNG files per class.
#
# Its archive, unpacked as ``CINIC-10`` below the data root, has ``train``, ``valid`` and ``test``
# of 90,000 images each. The first two are the training split here, as only the last is for tests.

CINIC10 = "CINIC-10"
CINIC10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
CINIC10_SIDE = 32


def cinic10_missing(root: Path) -> list[Path]:
    """The folders of classes that there should be and are not, or that hold no image."""
    folders = [root / CINIC10 / s / c for s in ("train", "valid", "test") for c in CINIC10_CLASSES]
    return [folder for folder in folders if not any(folder.glob("*.png"))]


def read_cinic10(root: Path, *, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 (N, 3, 32, 32), and labels, int64 (N,), of one split; some files are gray.

    Raises:
        UserError: names an image that cannot be read or is of another size, or a class with fewer
            images than the others.
    """
    folders = [root / CINIC10 / part for part in (("train", "valid") if train else ("test",))]
    files = [each for folder in folders for each in _labelled(folder)]
    images = np.empty((len(files), 3, CINIC10_SIDE, CINIC10_SIDE), np.uint8)
    for row, (file, _) in enumerate(files):
        image = read_image(file)
        if image.shape[:2] != (CINIC10_SIDE, CINIC10_SIDE):
            raise UserError(f"{file} is {image.shape[1]}x{image.shape[0]}; allowed: 32x32")
        images[row] = image if image.ndim == 2 else image.transpose(2, 0, 1)
    return images, np.array([label for _, label in files], np.int64)


def _labelled(folder: Path) -> list[tuple[Path, int]]:
    """The images with their classes, which have as many each, else the archive is not whole."""
    found = [sorted((folder / name).glob("*.png")) for name in CINIC10_CLASSES]
    counts = {len(files): name for files, name in zip(found, CINIC10_CLASSES, strict=True)}
    if len(counts) > 1:
        fewest = min(counts)
        raise UserError(
            f"{folder / counts[fewest]} holds {fewest} images, other classes {max(counts)}: "
            "unpack the whole archive"
        )
    return [(file, label) for label, files in enumerate(found) for file in files]


# Reads and fetches data sets by torchvision, imported late as the import takes two seconds.

TORCHVISION = {
    "mnist": "MNIST",
    "fmnist": "FashionMNIST",
    "emnist": "EMNIST",
    "svhn": "SVHN",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
}


def torchvision_class(name: str) -> Any:
    """The torchvision class that reads data set `name`."""
    from torchvision import datasets

    return getattr(datasets, TORCHVISION[name])


def open_split(name: str, root: Path, *, train: bool, download: bool = False) -> Any:
    """The torchvision data set of one split; with `download`, missing files are fetched first."""
    split: dict[str, object] = {"train": train}
    if name == "svhn":
        split = {"split": "train" if train else "test"}
    if name == "emnist":
        split["split"] = "balanced"
    return torchvision_class(name)(root, download=download, **split)


def read_torchvision(name: str, root: Path, *, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns uint8 images (N, C, H, W), upright, and int64 labels (N,) of one split."""
    source = open_split(name, root, train=train)
    images = np.asarray(source.data)
    if name == "emnist":
        images = images.transpose(0, 2, 1)  # the files hold every image transposed
    if name in ("cifar10", "cifar100"):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim == 3:
        images = images[:, None]
    labels = source.labels if name == "svhn" else source.targets
    return np.ascontiguousarray(images), np.asarray(labels, dtype=np.int64)


MISSING = "missing"
DAMAGED = "truncated or damaged"
LISTED = 8
"""Files that a line lists, at most."""

# Torchvision's paths of the MNIST family below the data root, up to images or labels.
IDX_STEMS = {
    "mnist": ("MNIST/raw/train", "MNIST/raw/t10k"),
    "fmnist": ("FashionMNIST/raw/train", "FashionMNIST/raw/t10k"),
    "emnist": ("EMNIST/raw/emnist-balanced-train", "EMNIST/raw/emnist-balanced-test"),
}
IDX_PARTS: dict[str, tuple[int, ...]] = {"images-idx3": (28, 28), "labels-idx1": ()}

IsWhole = Callable[[Path], bool]
Problems = dict[Path, str]
"""Files that cannot be used, each MISSING, DAMAGED or with the system's message."""


def find_problems(name: str, root: Path) -> Problems:
    """The files of data set `name` under `root` that are missing or not whole; empty if usable.

    The MNIST family's files are checked against their own headers, the others against torchvision's
    MD5 sums; of CINIC-10's 270,000 files it is only looked whether there are any for each class.
    """
    if name == "digits":
        return {}
    if name == "cinic10":
        return dict.fromkeys(cinic10_missing(root), MISSING)
    files = _idx_files(name, root) if name in IDX_STEMS else _md5_files(name, root)
    states = {path: _state(path, is_whole) for path, is_whole in files}
    return {path: state for path, state in states.items() if state}


def how_to_get(name: str, root: Path) -> str:
    """What to do about missing or damaged files, as the end of a line."""
    if name == "cinic10":
        return f"unpack CINIC-10's archive to {root / CINIC10}; Onefold does not fetch it"
    return f"`onefold data prepare {name} --data-root {root}` fetches them"


def describe(problems: Problems) -> str:
    """One line: each state once, followed by the files in that state."""
    parts = []
    for state in dict.fromkeys(problems.values()):
        paths = [str(path) for path in problems if problems[path] == state]
        more = [f"{len(paths) - LISTED} more"] if len(paths) > LISTED else []
        parts.append(f"{state}: " + ", ".join([*paths[:LISTED], *more]))
    return "; ".join(parts)


def _state(path: Path, is_whole: IsWhole) -> str:
    """The state of a file, "" where nothing is wrong."""
    try:
        if not path.is_file():
            return MISSING
        return "" if is_whole(path) else DAMAGED
    except OSError as error:
        return error.strerror or "unreadable"


def _idx_files(name: str, root: Path) -> list[tuple[Path, IsWhole]]:
    return [
        (root / f"{stem}-{part}-ubyte", partial(_is_idx, item_shape=item_shape))
        for stem in IDX_STEMS[name]
        for part, item_shape in IDX_PARTS.items()
    ]


def _is_idx(path: Path, item_shape: tuple[int, ...]) -> bool:
    """Whether the file has an idx header for such items, and the size that the header states."""
    words = 2 + len(item_shape)
    with path.open("rb") as file:
        header = file.read(4 * words)
    if len(header) < 4 * words:
        return False
    kind, count, *shape = struct.unpack(f">{words}I", header)
    right_kind = kind == 0x800 + words - 1  # unsigned bytes, and how many dimensions
    right_length = path.stat().st_size == len(header) + count * math.prod(shape)
    return right_kind and count > 0 and tuple(shape) == item_shape and right_length


def _md5_files(name: str, root: Path) -> list[tuple[Path, IsWhole]]:
    from torchvision.datasets.utils import check_integrity

    source = torchvision_class(name)
    if name == "svhn":
        folder = root
        listed = [source.split_list[split][1:] for split in ("train", "test")]
    else:
        folder = root / source.base_folder
        meta = (source.meta["filename"], source.meta["md5"])
        listed = [*source.train_list, *source.test_list, meta]
    return [(folder / file, partial(check_integrity, md5=md5)) for file, md5 in listed]
