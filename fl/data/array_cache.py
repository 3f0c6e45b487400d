"""Data sets as arrays in one file, to be memory-mapped, once torchvision has read them.

Importing torchvision takes a process two seconds and 50 MiB. The file's name holds a hash of where
the data set's own files lie, of their sizes and times: other files are never taken for these.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fl.cache import cache_dir
from fl.whole_files import replacing

SOURCES = {
    "mnist": "MNIST/raw/*",
    "fmnist": "FashionMNIST/raw/*",
    "emnist": "EMNIST/raw/*",
    "svhn": "*_32x32.mat",
    "cifar10": "cifar-10-batches-py/*",
    "cifar100": "cifar-100-python/*",
}
"""Each data set's own files, below the data root."""

Arrays = dict[str, np.ndarray]


def find(name: str, root: Path) -> Arrays | None:
    """What :func:`save` was given when the data set's files were as they are now."""
    try:
        return {k: tensor.numpy() for k, tensor in load_file(_path(name, root)).items()}
    except (OSError, SafetensorError):  # none, or not a whole one
        return None


def save(name: str, root: Path, arrays: Arrays) -> None:
    """Writes the arrays for the next :func:`find`; on a full disk nothing happens."""
    with suppress(OSError, SafetensorError):
        path = _path(name, root)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            save_file({k: torch.from_numpy(array) for k, array in arrays.items()}, temporary)


def _path(name: str, root: Path) -> Path:
    files = sorted(root.resolve().glob(SOURCES[name]))
    stats = [file.stat() for file in files]
    stamps = [(str(f), s.st_size, s.st_mtime_ns) for f, s in zip(files, stats, strict=True)]
    digest = hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]
    return cache_dir() / "data" / f"{name}-{digest}.safetensors"
