"""The image data sets, by name, as plain uint8 arrays."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from fl.data import array_cache, cinic10
from fl.data.digits import read_digits
from fl.data.files import describe, find_problems, how_to_get
from fl.data.vision import read_split
from fl.errors import UserError, unknown
from fl.seeding import numpy_generator


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
    found = array_cache.find(name, data_root)
    if found is None:
        found = _read_files(name, data_root)
        array_cache.save(name, data_root, found)
    return (
        Split(found["train_images"], found["train_labels"]),
        Split(found["test_images"], found["test_labels"]),
    )


def _read_files(name: str, data_root: Path) -> dict[str, np.ndarray]:
    problems = find_problems(name, data_root)
    if problems:
        raise UserError(f"{name}: {describe(problems)}; {how_to_get(name, data_root)}")
    read = cinic10.read_split if name == "cinic10" else partial(read_split, name)
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
