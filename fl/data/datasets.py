"""The image data sets, by name, as plain uint8 arrays."""

import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from fl.data.files import (
    describe,
    find_problems,
    how_to_get,
    read_cinic10,
    read_torchvision,
)
from fl.errors import UserError, unknown
from fl.seeding import numpy_generator
from fl.whole_files import cache_dir, no_pipe, replacing

# The `digits` data set: 1,797 handwritten digits of 8x8 pixels, which need no download.
#
# They are the test half of UCI's "Optical Recognition of Handwritten Digits" (E. Alpaydin and
# C. Kaynak, 1998, CC BY 4.0), in scikit-learn's version, stored beside this file: importing
# scikit-learn itself would cost every run more than two seconds.

DIGITS_SIDE = 28

Digits = tuple[np.ndarray, np.ndarray]


def read_digits() -> tuple[Digits, Digits]:
    """Returns (images, labels) of the train split and of the test split.

    Images are uint8 (N, 1, 28, 28), labels int64 (N,). The 80/20 split is stratified and fixed.
    """
    with (resources.files(__package__) / "digits.npz").open("rb") as file, np.load(file) as raw:
        train, test = (
            (enlarge(raw[f"{split}_images"])[:, None], raw[f"{split}_labels"].astype(np.int64))
            for split in ("train", "test")
        )
    return train, test


def enlarge(images: np.ndarray) -> np.ndarray:
    """Bilinear enlargement from (N, 8, 8), whole values 0..16, to uint8 (N, 28, 28), 0..255.

    Integer arithmetic throughout: half intensity is exactly 127.5, which floats would round
    differently on different machines, and the content key of every shard with it.
    """
    target = np.arange(DIGITS_SIDE)
    # Pixel centres at (target + 1/2) * 8/28 - 1/2, counted in 14ths of a source pixel.
    position = np.clip(4 * target - 5, 0, 14 * 7)
    low, part = np.divmod(position, 14)
    weights = np.zeros((DIGITS_SIDE, 8), dtype=np.int64)
    weights[target, low] += 14 - part
    weights[target, np.minimum(low + 1, 7)] += part
    scaled = weights @ images.astype(np.int64) @ weights.T * 255
    full = 14 * 14 * 16
    return ((scaled + full // 2) // full).astype(np.uint8)


# Data sets as arrays in one file, to be memory-mapped, once torchvision has read them.
#
# Importing torchvision takes a process two seconds and 50 MiB. The file's name contains a hash of
# the paths, sizes and times of the data set's own files, so that no other data is ever taken for
# it.

SOURCES = {
    "mnist": "MNIST/raw/*",
    "fmnist": "FashionMNIST/raw/*",
    "emnist": "EMNIST/raw/*",
    "svhn": "*_32x32.mat",
    "cifar10": "cifar-10-batches-py/*",
    "cifar100": "cifar-100-python/*",
    "cinic10": "CINIC-10/*/*/*.png",
}
"""Each data set's own files, below the data root."""

CHECKSUM = "sha256"
"""Of the file's metadata, under which the arrays' checksum is."""

Arrays = dict[str, np.ndarray]

log = logging.getLogger(__name__)


def find_arrays(name: str, root: Path) -> Arrays | None:
    """The arrays that :func:`save` wrote for the data set's files as they are now; else None."""
    path = _path(name, root)
    try:
        arrays = {k: tensor.numpy() for k, tensor in load_file(no_pipe(path)).items()}
        with safe_open(path, "np") as file:
            about = file.metadata() or {}
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError):  # an incomplete file, or one that may not be read
        arrays, about = {}, {}
    if about.get(CHECKSUM) != _checksum(arrays):
        log.warning("%s is damaged: it is ignored, and made again", path)
        return None
    return arrays


def save_arrays(name: str, root: Path, arrays: Arrays) -> None:
    """Writes the arrays for the next :func:`find`; does nothing if they cannot be written."""
    with suppress(OSError, SafetensorError):
        path = _path(name, root)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            tensors = {k: torch.from_numpy(array) for k, array in arrays.items()}
            save_file(tensors, temporary, {CHECKSUM: _checksum(arrays)})


def _checksum(arrays: Arrays) -> str:
    """Of the arrays' names, types, shapes and values."""
    sha = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        sha.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()


def _path(name: str, root: Path) -> Path:
    files = sorted(root.resolve().glob(SOURCES[name]))
    stats = [file.stat() for file in files]
    stamps = [(str(f), s.st_size, s.st_mtime_ns) for f, s in zip(files, stats, strict=True)]
    digest = hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]
    return cache_dir() / "data" / f"{name}-{digest}.safetensors"


@dataclass(frozen=True)
class DatasetInfo:
    """Classes and image shape of a data set, which are fixed before its files are read."""

    num_classes: int
    image_shape: tuple[int, int, int]  # channels, height, width


INFO = {
    "digits": DatasetInfo(10, (1, 28, 28)),
    "mnist": DatasetInfo(10, (1, 28, 28)),
    "fmnist": DatasetInfo(10, (1, 28, 28)),
    "emnist": DatasetInfo(47, (1, 28, 28)),
    "svhn": DatasetInfo(10, (3, 32, 32)),
    "cifar10": DatasetInfo(10, (3, 32, 32)),
    "cifar100": DatasetInfo(100, (3, 32, 32)),
    "cinic10": DatasetInfo(10, (3, 32, 32)),
}
NAMES = tuple(INFO)


@dataclass(frozen=True, eq=False)
class Split:
    """Images, uint8 (N, C, H, W), with their labels, int64 (N,)."""

    images: np.ndarray
    labels: np.ndarray
    domains: np.ndarray | None = None
    """Which domain each image is from, int64 (N,), where the data set has domains."""

    def take(self, indices: np.ndarray) -> "Split":
        """The samples at these indices."""
        domains = None if self.domains is None else self.domains[indices]
        return Split(self.images[indices], self.labels[indices], domains)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set's train and test split."""

    name: str
    train: Split
    test: Split
    num_classes: int
    class_names: tuple[str, ...] = ()
    """Empty where classes have only numbers."""
    domain_names: tuple[str, ...] = ()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width


def dataset_info(name: str) -> DatasetInfo:
    """Classes and image shape of data set `name`. Raises UserError for an unknown name."""
    if name not in INFO:
        raise unknown("data set", name, NAMES)
    return INFO[name]


def load(
    name: str, data_root: Path, *, max_train: int | None = None, max_test: int | None = None
) -> Dataset:
    """Reads data set `name` from `data_root`, in torchvision's folder layout. Never downloads.

    `max_train` and `max_test` take a shuffled subset of a split, the same one in every run; a
    smaller subset is the beginning of a larger one, and one larger than the split is all of it.
    Raises UserError for an unknown name, for files that are missing or damaged, and for an empty
    subset.
    """
    info = dataset_info(name)
    train, test = _read(name, data_root)
    _check(name, info, train)
    _check(name, info, test)
    whole = Dataset(name, train, test, info.num_classes)
    return subset(whole, max_train=max_train, max_test=max_test)


def subset(dataset: Dataset, *, max_train: int | None, max_test: int | None) -> Dataset:
    """A shuffled subset of each split; see :func:`load`."""
    train = _subset(dataset.name, "max_train", dataset.train, max_train)
    test = _subset(dataset.name, "max_test", dataset.test, max_test)
    return replace(dataset, train=train, test=test)


def _read(name: str, data_root: Path) -> tuple[Split, Split]:
    if name == "digits":
        train, test = read_digits()
        return Split(*train), Split(*test)
    found = find_arrays(name, data_root)
    if found is None:
        found = _read_files(name, data_root)
        save_arrays(name, data_root, found)
    return (
        Split(found["train_images"], found["train_labels"]),
        Split(found["test_images"], found["test_labels"]),
    )


def _read_files(name: str, data_root: Path) -> dict[str, np.ndarray]:
    problems = find_problems(name, data_root)
    if problems:
        raise UserError(f"{name}: {describe(problems)}; {how_to_get(name, data_root)}")
    read = read_cinic10 if name == "cinic10" else partial(read_torchvision, name)
    found: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        images, labels = read(data_root, train=split == "train")
        found |= {f"{split}_images": images, f"{split}_labels": labels}
    return found


def _check(name: str, info: DatasetInfo, split: Split) -> None:
    """Refuses complete files with wrong content, such as another data set's under this name."""
    images, labels = split.images, split.labels
    if len(images) != len(labels):
        raise UserError(f"{name}: {len(images)} images but {len(labels)} labels in its files")
    if labels.min() < 0 or labels.max() >= info.num_classes:
        raise UserError(
            f"{name}: labels {labels.min()}..{labels.max()} in its files; "
            f"allowed: 0..{info.num_classes - 1}"
        )


def _subset(name: str, option: str, split: Split, size: int | None) -> Split:
    if size is None:
        return split
    if size < 1:
        raise UserError(f"{option} {size} for {name}; allowed: 1 and more")
    chosen = numpy_generator(0, f"{name} {option}").permutation(len(split.labels))[:size]
    return split.take(chosen)
