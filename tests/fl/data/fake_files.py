"""Small stand-ins for the real data sets' files, in torchvision's layout."""

import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from torchvision import datasets

IDX_STEMS = {
    "mnist": ("MNIST/raw/train", "MNIST/raw/t10k"),
    "fmnist": ("FashionMNIST/raw/train", "FashionMNIST/raw/t10k"),
    "emnist": ("EMNIST/raw/emnist-balanced-train", "EMNIST/raw/emnist-balanced-test"),
}


def fake_images(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, *shape), dtype=np.uint8)


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_idx_family(root: Path, name: str, *, train: int = 60, test: int = 20) -> None:
    """A whole data set of the MNIST family: labels 0, 1, .., 9, 0, .."""
    for stem, count in zip(IDX_STEMS[name], (train, test), strict=True):
        write_idx(root / f"{stem}-images-idx3-ubyte", fake_images(count, 28, 28))
        write_idx(root / f"{stem}-labels-idx1-ubyte", np.arange(count) % 10)


def write_svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SVHN in .mat files, channels and samples last, digit 0 labelled 10."""
    listed = {}
    for split, count in (("train", 30), ("test", 10)):
        path = root / f"{split}_32x32.mat"
        images = fake_images(count, 3, 32, 32).transpose(2, 3, 1, 0)
        savemat(path, {"X": images, "y": (np.arange(count) % 10 + 1)[:, None]})
        listed[split] = ["", path.name, _md5(path)]
    monkeypatch.setattr(datasets.SVHN, "split_list", listed)


def write_cifar(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 or CIFAR-100 in pickles of flat rows, channels first."""
    kind = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    key = {"cifar10": "labels", "cifar100": "fine_labels"}[name]
    folder = root / kind.base_folder
    folder.mkdir(parents=True)

    def write(file: str, content: dict[str, object]) -> str:
        (folder / file).write_bytes(pickle.dumps(content))
        return _md5(folder / file)

    for attribute, count in (("train_list", 20), ("test_list", 10)):
        rows = fake_images(count, 3 * 32 * 32)
        content = {"data": rows, key: [index % 10 for index in range(count)]}
        listed = [[file, write(file, content)] for file, _ in getattr(kind, attribute)]
        monkeypatch.setattr(kind, attribute, listed)
    meta = kind.meta["filename"]
    md5 = write(meta, {kind.meta["key"]: ["a name"]})
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5})


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()
