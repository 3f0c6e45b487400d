"""Feature-skewed data: a folder per domain, in each a folder per class with its images.

That is DomainNet's layout, ``FOLDER/domain/class/image.png``.
"""

from pathlib import Path

import numpy as np

from fl.data.datasets import Dataset, Split
from fl.data.image_files import check_names, class_folders, image_files, read_image
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
    domains, classes = _folders(folder), set[str]()
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
    train, test = [], []
    for number, domain in enumerate(domains):
        images, labels = _read(folder / domain, classes, side)
        if len(labels) < 2:
            raise UserError(f"domain {folder / domain} has one image; allowed: 2 or more")
        shuffled = numpy_generator(seed, "domain test", number).permutation(len(labels))
        held_out = max(1, round(TEST_SHARE * len(labels)))
        whole = Split(images, labels, np.full(len(labels), number))
        test.append(whole.take(np.sort(shuffled[:held_out])))
        train.append(whole.take(np.sort(shuffled[held_out:])))
    names = {"class_names": classes, "domain_names": domains}
    return Dataset(NAME, _joined(train), _joined(test), len(classes), **names)


def _folders(folder: Path) -> list[str]:
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_dir())
        return [name for name in names if not name.startswith((".", "__"))]
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}; {LAYOUT}") from None


def _read(folder: Path, classes: tuple[str, ...], side: int) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 (N, 3, side, side), and labels, int64 (N,), of one domain."""
    from PIL import Image  # late, as other runs need not wait for it

    found = [
        (file, classes.index(name))
        for name in class_folders(folder)
        for file in image_files(folder / name)
    ]
    images = np.empty((len(found), 3, side, side), dtype=np.uint8)
    for row, (file, _) in enumerate(found):
        image = Image.fromarray(read_image(file)).convert("RGB")
        images[row] = np.asarray(image.resize((side, side))).transpose(2, 0, 1)
    return images, np.array([label for _, label in found], dtype=np.int64)


def _joined(splits: list[Split]) -> Split:
    columns = zip(*((s.images, s.labels, s.domains) for s in splits), strict=True)
    return Split(*(np.concatenate(column) for column in columns))
