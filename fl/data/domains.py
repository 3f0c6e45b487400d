"""Feature-skewed data: a folder per domain, in each a folder per class with its images.

That is DomainNet's layout, ``FOLDER/domain/class/image.png``.
"""

from pathlib import Path

import numpy as np

from fl.data.datasets import Dataset, Split
from fl.data.image_files import HIDDEN, ImageFolder, check_names, class_folders
from fl.errors import UserError
from fl.seeding import numpy_generator

NAME = "folder"
"""Name of such a data set in the configuration."""
TEST_SHARE = 0.2
"""Share of each domain's images in the test split, drawn by the run's seed."""
LAYOUT = "expected FOLDER/domain/class/image"


def find_names(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the domains and of all their classes, each in order; reads no image.

    Raises:
        UserError: there is no such folder, or a domain without a folder of a class.
    """
    try:
        found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}; {LAYOUT}") from None
    domains, classes = [n for n in found if not n.startswith(HIDDEN)], set[str]()
    if not domains:
        raise UserError(f"{folder} holds no folders of domains; {LAYOUT}")
    for domain in domains:
        found = class_folders(folder / domain)
        if not found:
            raise UserError(f"domain {folder / domain} holds no folders with images; {LAYOUT}")
        classes.update(found)
    check_names(f"{folder}: domain", domains)
    return tuple(domains), tuple(sorted(classes))


def load_domains(folder: Path, side: int, seed: int) -> Dataset:
    """Reads every domain, its images as RGB scaled to ``side`` x ``side``, and splits each.

    A domain may lack classes that another has.

    Raises:
        UserError: the folder is laid out otherwise, holds an image that cannot be read, or a
            domain of one image.
    """
    domains, classes = find_names(folder)
    read = [_read(folder / domain, classes, side) for domain in domains]
    images, labels = (np.concatenate(column) for column in zip(*read, strict=True))
    sizes = [len(own) for _, own in read]
    if 1 in sizes:
        alone = folder / domains[sizes.index(1)]
        raise UserError(f"domain {alone} has one image; allowed: 2 or more")
    numbers, is_test = np.repeat(np.arange(len(domains)), sizes), np.zeros(len(labels), bool)
    for number, size in enumerate(sizes):
        own = np.flatnonzero(numbers == number)
        shuffled = numpy_generator(seed, "domain test", number).permutation(own)
        is_test[shuffled[: max(1, round(TEST_SHARE * size))]] = True
    whole = Split(images, labels, numbers)
    train, test = (whole.take(np.flatnonzero(part)) for part in (~is_test, is_test))
    return Dataset(NAME, train, test, len(classes), classes, domains)


def _read(folder: Path, classes: tuple[str, ...], side: int) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 (N, 3, side, side), and labels, int64 (N,), of one domain."""
    from PIL import Image  # late, as other runs need not wait for it

    found = ImageFolder(folder, classes)
    images = np.empty((len(found), 3, side, side), dtype=np.uint8)
    labels = np.empty(len(found), dtype=np.int64)
    for row in range(len(found)):
        pixels, labels[row] = found[row]
        image = Image.fromarray(pixels).convert("RGB").resize((side, side))
        images[row] = np.asarray(image).transpose(2, 0, 1)
    return images, labels
