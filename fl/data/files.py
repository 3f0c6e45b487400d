"""The data sets' own files, read by torchvision, which checks them; and CINIC-10's."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fl.data.image_files import listed, read_image
from fl.errors import UserError, reason_of

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
    fewest = min(counts)
    if len(counts) > 1 or not fewest:
        raise UserError(
            f"{folder / counts[fewest]} holds {fewest} images, other classes {max(counts)}: unpack "
            f"CINIC-10's archive to {folder.parent}; Onefold does not fetch it"
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


def open_split(name: str, root: Path, *, train: bool, download: bool = False) -> Any:
    """The torchvision data set of one split; with `download`, missing files are fetched first."""
    from torchvision import datasets

    split: dict[str, object] = {"train": train}
    if name == "svhn":
        split = {"split": "train" if train else "test"}
    if name == "emnist":
        split["split"] = "balanced"
    return getattr(datasets, TORCHVISION[name])(root, download=download, **split)


def read_torchvision(name: str, root: Path, *, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns uint8 images (N, C, H, W), upright, and int64 labels (N,) of one split.

    Raises:
        UserError: files are missing, or are not what their headers or torchvision's MD5 sums say.
    """
    try:
        source = open_split(name, root, train=train)
    except (MemoryError, ImportError):  # no fault of the files
        raise
    except Exception as error:  # of many kinds, by what is damaged
        reason = reason_of(error) if isinstance(error, OSError) else _what_is_wrong(name, root)
        raise UserError(
            f"{name}: files in {root}: {reason}; `onefold data prepare {name} --data-root {root}` "
            "fetches them"
        ) from None
    images = np.asarray(source.data)
    if name == "emnist":
        images = images.transpose(0, 2, 1)  # the files hold every image transposed
    if name in ("cifar10", "cifar100"):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim == 3:
        images = images[:, None]
    labels = source.labels if name == "svhn" else source.targets
    return np.ascontiguousarray(images), np.asarray(labels, dtype=np.int64)


def files_of(name: str, root: Path, *, train: bool) -> list[tuple[Path, str | None]]:
    """The files of one split that torchvision reads, with their MD5 sums where it has them; of
    CINIC-10 its folder."""
    if name not in TORCHVISION:
        return [(root / CINIC10, None)]
    from torchvision import datasets

    kind: Any = getattr(datasets, TORCHVISION[name])
    if name == "svhn":
        _, file, md5 = kind.split_list["train" if train else "test"]
        return [(root / file, md5)]
    if name in ("cifar10", "cifar100"):
        meta = (kind.meta["filename"], kind.meta["md5"])
        own = [*(kind.train_list if train else kind.test_list), meta]
        return [(root / kind.base_folder / file, md5) for file, md5 in own]
    part = "train" if train else "test" if name == "emnist" else "t10k"
    stem = f"emnist-balanced-{part}" if name == "emnist" else part
    folder, ends = root / TORCHVISION[name] / "raw", ("images-idx3", "labels-idx1")
    return [(folder / f"{stem}-{end}-ubyte", None) for end in ends]


def _what_is_wrong(name: str, root: Path) -> str:
    """Which files are missing or damaged; that some are where each seems to be whole."""
    from torchvision.datasets.utils import check_integrity

    found: dict[str, list[str]] = {}
    for file, md5 in chain(*(files_of(name, root, train=train) for train in (True, False))):
        if not file.is_file():
            found.setdefault("missing", []).append(str(file.relative_to(root)))
        elif not (check_integrity(file, md5) if md5 else _is_whole(file)):
            found.setdefault("damaged", []).append(str(file.relative_to(root)))
    parts = [f"{state}: {listed(sorted({*files}))}" for state, files in found.items()]
    return "; ".join(parts) or "missing or damaged"


def remove_damaged(name: str, root: Path) -> None:
    """Deletes files that cannot be read of the MNIST family, of whose files torchvision only asks
    whether they are there before it fetches them."""
    for file in root.glob(f"{TORCHVISION[name]}/raw/*-ubyte"):
        if not _is_whole(file):
            file.unlink()


def _is_whole(file: Path) -> bool:
    """Whether a file of the MNIST family can be read."""
    from torchvision.datasets.mnist import read_image_file, read_label_file

    try:
        (read_image_file if "images" in file.name else read_label_file)(str(file))
    except (RuntimeError, ValueError, TypeError, LookupError, AssertionError):
        return False
    return True
