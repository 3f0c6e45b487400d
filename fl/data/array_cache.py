"""Data sets as arrays in one file, to be memory-mapped, once torchvision has read them.

Importing torchvision takes a process two seconds and 50 MiB. The file's name contains a hash of the
paths, sizes and times of the data set's own files, so that no other data is ever taken for it.
"""

import hashlib
import logging
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from fl.cache import cache_dir
from fl.whole_files import no_pipe, replacing

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


def find(name: str, root: Path) -> Arrays | None:
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


def save(name: str, root: Path, arrays: Arrays) -> None:
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
