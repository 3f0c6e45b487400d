"""Reads and fetches data sets by torchvision, imported late as the import takes two seconds."""

from pathlib import Path
from typing import Any

import numpy as np

CLASSES = {
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

    return getattr(datasets, CLASSES[name])


def open_split(name: str, root: Path, *, train: bool, download: bool = False) -> Any:
    """The torchvision data set of one split; with `download`, missing files are fetched first."""
    kind = torchvision_class(name)
    if name == "svhn":
        return kind(root, split="train" if train else "test", download=download)
    if name == "emnist":
        return kind(root, split="balanced", train=train, download=download)
    return kind(root, train=train, download=download)


def read_split(name: str, root: Path, *, train: bool) -> tuple[np.ndarray, np.ndarray]:
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
