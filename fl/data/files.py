"""Image files in folders of classes, and the data sets' own: CINIC-10's, and torchvision's.

Of an image file each pixel is what its file means. Torchvision checks the files that it reads.
"""

import logging
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np

from fl.errors import UserError, reason_of

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM")
"""What Pillow may take a file for, whatever its name says; other formats run other programs."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
HIDDEN = (".", "__")
"""How names of folders begin that are no one's data."""
MOST_PIXELS = 1 << 26
"""Of one image; looked at before it is decoded."""
LONGEST_NAME = 100
"""Characters of a class's or domain's name, which reports draw."""
LISTED = 5
"""Names that a line lists, at most."""

log = logging.getLogger(__name__)


def image_files(folder: Path) -> list[Path]:
    """The folder's images, by name. Other files are left out, which is said.

    Raises:
        UserError: there are images in a folder below it, which would be left out.
    """
    for below in folder.iterdir():
        if below.is_dir() and not below.name.startswith(HIDDEN) and _holds_image(below):
            raise UserError(
                f"{folder} holds the folder {below.name} with images; expected a class's images "
                "in its own folder alone"
            )
    files = [f for f in sorted(folder.iterdir()) if f.is_file() and not f.name.startswith(".")]
    others = [file.name for file in files if file.suffix.lower() not in SUFFIXES]
    if others:
        log.warning("%s: files that are not images are ignored: %s", folder, listed(others))
    return [file for file in files if file.suffix.lower() in SUFFIXES]


def class_folders(folder: Path) -> list[str]:
    """Names of the folders that hold images, in order. Others are left out, which is said.

    Raises:
        UserError: there are images in folders below these alone, or a name is none to show.
    """
    names = sorted(each.name for each in folder.iterdir() if each.is_dir())
    hidden = [name for name in names if name.startswith(HIDDEN)]
    empty = [n for n in names if n not in hidden and not _holds_image(folder / n)]
    for name in empty:
        image_files(folder / name)
    loose = [f.name for f in sorted(folder.iterdir()) if _is_image(f)]
    if hidden or empty or loose:
        left_out = listed([*hidden, *empty, *loose])
        log.warning("%s: ignored, as they are not class folders with images: %s", folder, left_out)
    found = [name for name in names if name not in hidden and name not in empty]
    check_names(f"{folder}: class", found)
    return found


class ImageFolder:
    """A data set object over a folder of images by class, read as they are asked for."""

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self.classes = classes
        self._files = [
            (file, label)
            for label, name in enumerate(classes)
            if (folder / name).is_dir()
            for file in image_files(folder / name)
        ]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        file, label = self._files[index]
        return read_image(file), label

    def named(self, index: int) -> str:
        """The file of a sample, by which a refusal names it."""
        return str(self._files[index][0])


def check_names(of: str, names: Sequence[str]) -> None:
    """Refuses names of classes or domains that a report could not show."""
    for name in names:
        if not (name.isprintable() and name.strip() and len(name) <= LONGEST_NAME):
            shown = name if len(name) <= LONGEST_NAME else f"{name[:40]}... ({len(name)})"
            raise UserError(
                f"{of} {shown!r}; allowed: 1 to {LONGEST_NAME} characters of UTF-8 that can be "
                "printed"
            )


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and file.is_file()


def _holds_image(folder: Path) -> bool:
    return any(map(_is_image, folder.iterdir()))


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def read_image(file: Path) -> np.ndarray:
    """The image, uint8 (H, W) or (H, W, 3).

    Raises:
        UserError: it cannot be read, or is none of :func:`pixels`.
    """
    from PIL import Image

    try:
        with catch_warnings(action="ignore"), Image.open(file, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise UserError(f"image {file} has {width}x{height} pixels; allowed: {MOST_PIXELS}")
            return pixels(image, str(file))
    except UserError:
        raise
    except Exception as error:  # of many kinds, by what is damaged
        raise UserError(f"cannot read image {file}: {reason_of(error)}") from None


def pixels(image: Any, name: str) -> np.ndarray:
    """The pixels of a Pillow image, uint8 (H, W) or (H, W, 3), exactly.

    Raises:
        UserError: they have more than 8 bits, colours other than grey or RGB, or are transparent.
    """
    if image.mode in ("L", "1"):
        return np.asarray(image.convert("L"))
    if image.mode in ("P", "RGBA", "LA", "PA"):
        with_alpha = np.asarray(image.convert("RGBA"))
        if with_alpha[..., 3].min() < 255:
            raise UserError(f"image {name} has transparent pixels; put it on a background")
        return with_alpha[..., :3]
    if image.mode != "RGB":
        raise UserError(
            f"image {name} has pixels of mode {image.mode}; allowed: 8 bits of grey, of a palette, "
            "or of each of red, green and blue"
        )
    return np.asarray(image)


def in_one_form(images: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Grey images (H, W) as (H, W, 3), where others of the same sides are in colour."""
    if {image.ndim for image in images} != {2, 3}:
        return list(images)
    return [np.repeat(i[..., None], 3, axis=2) if i.ndim == 2 else i for i in images]


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
