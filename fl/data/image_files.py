"""Image files in folders of classes: which are read, and each pixel as its file means it."""

import logging
from collections.abc import Sequence
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
        log.warning("%s: no images, and left out: %s", folder, listed(others))
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
        log.warning("%s: no folders of a class's images, and left out: %s", folder, left_out)
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
