"""The data sets' own files: read, and checked before torchvision fails on what is missing."""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
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
    """Images, uint8 (N, 3, 32, 32), and labels, int64 (N,), of one split.

    Raises:
        UserError: names an image that cannot be read or is of another size, or a class with fewer
            images than the others.
    """
    files = [
        (file, label)
        for part in (("train", "valid") if train else ("test",))
        for label, found in enumerate(_listed(root / CINIC10 / part))
        for file in found
    ]
    images = np.empty((len(files), 3, CINIC10_SIDE, CINIC10_SIDE), np.uint8)
    for row, (file, _) in enumerate(files):
        images[row] = _read_png(file)
    return images, np.array([label for _, label in files], np.int64)


def _listed(folder: Path) -> list[list[Path]]:
    """The images of each class; all classes have as many, else the archive is not whole."""
    found = [sorted((folder / name).glob("*.png")) for name in CINIC10_CLASSES]
    counts = {len(files): name for files, name in zip(found, CINIC10_CLASSES, strict=True)}
    if len(counts) > 1:
        fewest = min(counts)
        raise UserError(
            f"{folder / counts[fewest]} holds {fewest} images, other classes {max(counts)}: "
            "unpack the whole archive"
        )
    return found


def _read_png(file: Path) -> np.ndarray:
    """An image as (3, 32, 32); some files are gray."""
    image = read_image(file)
    if image.shape[:2] != (CINIC10_SIDE, CINIC10_SIDE):
        raise UserError(f"{file} is {image.shape[1]}x{image.shape[0]}; allowed: 32x32")
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=2)
    return image.transpose(2, 0, 1)


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
    kind = torchvision_class(name)
    if name == "svhn":
        return kind(root, split="train" if train else "test", download=download)
    if name == "emnist":
        return kind(root, split="balanced", train=train, download=download)
    return kind(root, train=train, download=download)


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

# Torchvision's paths of the MNIST family below the data root: "{}" stands for images or labels.
IDX_FILES = {
    "mnist": ("MNIST/raw/train-{}-ubyte", "MNIST/raw/t10k-{}-ubyte"),
    "fmnist": ("FashionMNIST/raw/train-{}-ubyte", "FashionMNIST/raw/t10k-{}-ubyte"),
    "emnist": (
        "EMNIST/raw/emnist-balanced-train-{}-ubyte",
        "EMNIST/raw/emnist-balanced-test-{}-ubyte",
    ),
}
IDX_PARTS: dict[str, tuple[int, ...]] = {"images-idx3": (28, 28), "labels-idx1": ()}

IsWhole = Callable[[Path], bool]


@dataclass(frozen=True)
class FileProblem:
    """One file that cannot be used; `state` is MISSING, DAMAGED or the system's message."""

    path: Path
    state: str


def find_problems(name: str, root: Path) -> list[FileProblem]:
    """The files of data set `name` under `root` that are missing or not whole; empty if usable.

    The MNIST family's files are checked against their own headers, the others against torchvision's
    MD5 sums; of CINIC-10's 270,000 files it is only looked whether there are any for each class.
    """
    if name == "digits":
        return []
    if name == "cinic10":
        return [FileProblem(folder, MISSING) for folder in cinic10_missing(root)]
    files = _idx_files(name, root) if name in IDX_FILES else _md5_files(name, root)
    problems = [FileProblem(path, _state(path, is_whole)) for path, is_whole in files]
    return [problem for problem in problems if problem.state]


def how_to_get(name: str, root: Path) -> str:
    """What to do about missing or damaged files, as the end of a line."""
    if name == "cinic10":
        return f"unpack CINIC-10's archive to {root / CINIC10}; Onefold does not fetch it"
    return f"`onefold data prepare {name} --data-root {root}` fetches them"


def describe(problems: list[FileProblem]) -> str:
    """One line: each state once, followed by the files in that state."""
    parts = []
    for state in dict.fromkeys(problem.state for problem in problems):
        paths = [str(problem.path) for problem in problems if problem.state == state]
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
        (root / pattern.format(part), partial(_is_idx, item_shape=item_shape))
        for pattern in IDX_FILES[name]
        for part, item_shape in IDX_PARTS.items()
    ]


def _is_idx(path: Path, item_shape: tuple[int, ...]) -> bool:
    """Whether the file has an idx header for such items, and the size that the header states."""
    rank = 1 + len(item_shape)
    size = 4 + 4 * rank
    with path.open("rb") as file:
        header = file.read(size)
    if len(header) < size or header[:4] != bytes([0, 0, 8, rank]):  # 8: unsigned bytes
        return False
    count, *shape = struct.unpack(f">{rank}I", header[4:])
    right_length = path.stat().st_size == size + count * math.prod(shape)
    return count > 0 and tuple(shape) == item_shape and right_length


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
