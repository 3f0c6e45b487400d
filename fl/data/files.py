"""Checks a data set's files for missing and damaged ones, before torchvision fails on them."""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fl.data import cinic10
from fl.data.vision import torchvision_class

MISSING = "missing"
DAMAGED = "truncated or damaged"
LISTED = 8
"""Files that a line lists, at most."""

# Torchvision's paths of the MNIST family below the data root: "{}" stands for images or labels.
IDX_FILES = {
    "mnist": ("MNIST/raw/train-{}-ubyte", "MNIST/raw/t10k-{}-ubyte"),
    "fmnist": ("FashionMNIST/raw/train-{}-ubyte", "FashionMNIST/raw/t10k-{}-ubyte"),
    "emnist": (
        "EMNIST/raw/emnist-balanced-train-{}-ubyte",
        "EMNIST/raw/emnist-balanced-test-{}-ubyte",
    ),
}
IDX_PARTS: dict[str, tuple[int, ...]] = {"images-idx3": (28, 28), "labels-idx1": ()}

IsWhole = Callable[[Path], bool]


@dataclass(frozen=True)
class FileProblem:
    """One file that cannot be used; `state` is MISSING, DAMAGED or the system's message."""

    path: Path
    state: str


def find_problems(name: str, root: Path) -> list[FileProblem]:
    """The files of data set `name` under `root` that are missing or not whole; empty if usable.

    The MNIST family's files are checked against their own headers, the others against torchvision's
    MD5 sums; of CINIC-10's 270,000 files it is only looked whether there are any for each class.
    """
    if name == "digits":
        return []
    if name == "cinic10":
        return [FileProblem(folder, MISSING) for folder in cinic10.find_missing(root)]
    files = _idx_files(name, root) if name in IDX_FILES else _md5_files(name, root)
    problems = [FileProblem(path, _state(path, is_whole)) for path, is_whole in files]
    return [problem for problem in problems if problem.state]


def how_to_get(name: str, root: Path) -> str:
    """What to do about missing or damaged files, as the end of a line."""
    if name == "cinic10":
        return f"unpack CINIC-10's archive to {root / cinic10.FOLDER}; Onefold does not fetch it"
    return f"`onefold data prepare {name} --data-root {root}` fetches them"


def describe(problems: list[FileProblem]) -> str:
    """One line: each state once, followed by the files in that state."""
    parts = []
    for state in dict.fromkeys(problem.state for problem in problems):
        paths = [str(problem.path) for problem in problems if problem.state == state]
        more = [f"{len(paths) - LISTED} more"] if len(paths) > LISTED else []
        parts.append(f"{state}: " + ", ".join([*paths[:LISTED], *more]))
    return "; ".join(parts)


def _state(path: Path, is_whole: IsWhole) -> str:
    """The state of a file, "" where nothing is wrong."""
    try:
        if not path.is_file():
            return MISSING
        return "" if is_whole(path) else DAMAGED
    except OSError as error:
        return error.strerror or "unreadable"


def _idx_files(name: str, root: Path) -> list[tuple[Path, IsWhole]]:
    return [
        (root / pattern.format(part), partial(_is_idx, item_shape=item_shape))
        for pattern in IDX_FILES[name]
        for part, item_shape in IDX_PARTS.items()
    ]


def _is_idx(path: Path, item_shape: tuple[int, ...]) -> bool:
    """Whether the file has an idx header for such items, and the size that the header states."""
    rank = 1 + len(item_shape)
    size = 4 + 4 * rank
    with path.open("rb") as file:
        header = file.read(size)
    if len(header) < size or header[:4] != bytes([0, 0, 8, rank]):  # 8: unsigned bytes
        return False
    count, *shape = struct.unpack(f">{rank}I", header[4:])
    right_length = path.stat().st_size == size + count * math.prod(shape)
    return count > 0 and tuple(shape) == item_shape and right_length


def _md5_files(name: str, root: Path) -> list[tuple[Path, IsWhole]]:
    from torchvision.datasets.utils import check_integrity

    source = torchvision_class(name)
    if name == "svhn":
        folder = root
        listed = [source.split_list[split][1:] for split in ("train", "test")]
    else:
        folder = root / source.base_folder
        meta = (source.meta["filename"], source.meta["md5"])
        listed = [*source.train_list, *source.test_list, meta]
    return [(folder / file, partial(check_integrity, md5=md5)) for file, md5 in listed]
