"""Every data set that a run can name: Onefold's, those that the user registered, and paths.

At a path lie .npz and LEAF's files, or image folders; hf:NAME is in Hugging Face's cache.
"""

import importlib.util
import json
import logging
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fl.bounds import Bound
from fl.data import datasets
from fl.data.datasets import INFO, NAMES, Dataset, DatasetInfo, Split, fingerprint, subset
from fl.data.files import HIDDEN, ImageFolder, check_names, class_folders
from fl.data.lazy import Lazy
from fl.data.own import TEST_SHARE, as_dataset
from fl.errors import UserError, check_name, reason_of, unknown
from fl.seeding import numpy_generator
from fl.sources import code_of
from fl.whole_files import no_pipe, read_text

log = logging.getLogger(__name__)
REGISTERED: dict[str, Dataset] = {}
_GIVEN: dict[str, tuple[Any, Callable[[Tensor], Tensor] | None, str]] = {}
"""What a registered data set was made of, and the digest of the code that reads it later."""


class DatasetName(Bound):
    """The name of a data set, or of one that the user registered; or the path of one."""

    def __init__(self, also: Iterable[str] = ()) -> None:
        """``also``: names that stand for data sets without being in the catalogue."""
        self._also = tuple(also)

    def allows(self, value: object) -> bool:
        """Whether there is such a name, or it is a path, which is looked for later."""
        return isinstance(value, str) and (is_elsewhere(value) or value in self.names)

    def refusal(self, name: str, value: object) -> UserError:
        """The error lists the names."""
        return UserError(
            f"{unknown(name, value, self.names)}; or the path of an .npz, or of a folder as in "
            "./FOLDER, or hf:NAME"
        )

    @property
    def names(self) -> list[str]:
        """All names there are."""
        return [*NAMES, *REGISTERED, *self._also]


def register_dataset(
    name: str, data: Any, augment: Callable[[Tensor], Tensor] | None = None
) -> None:
    """Makes the user's data known by a name, for ``--dataset``.

    Args:
        name: letters, digits and ``. _ + -``; not one of Onefold's data sets.
        data: whatever :func:`fl.data.own.as_dataset` takes.
        augment: a function of one sample, as a model gets it, by which it is changed each time that
            a classifier trains on it, such as torchvision's random transforms.

    Raises:
        UserError: the name is taken, or the data is none.
    """
    check_name("data set", name, {*NAMES, FOLDER})
    found = REGISTERED[name] = as_dataset(name, data, augment)
    lazy = isinstance(found.train.images, Lazy) and found.train.images.draws
    kept = data if lazy else replace(found, train=replace(found.train, augment=None))
    _GIVEN[name] = (kept, augment, _code(kept, augment))


def read_again(name: str) -> None:
    """Registers a data set anew, if what its code refers to has changed since it was registered.

    Raises:
        UserError: as :func:`register_dataset`.
    """
    data, augment, code = _GIVEN.get(name, (None, None, ""))
    if code and code != _code(data, augment):
        register_dataset(name, data, augment)


def _code(data: Any, augment: Callable[[Tensor], Tensor] | None) -> str:
    return code_of((None if isinstance(data, Dataset) else data, augment)).digest


def dataset_info(name: str) -> DatasetInfo:
    """Classes and samples of a data set; one of the user's own is read for it.

    Raises:
        UserError: there is no such data set, or it cannot be read.
    """
    if name in INFO:
        return INFO[name]
    found = own_dataset(name)
    return DatasetInfo(found.num_classes, found.inputs, found.targets)


def load(
    name: str, data_root: Path, *, max_train: int | None = None, max_test: int | None = None
) -> Dataset:
    """The data set of that name; see :func:`fl.data.datasets.load`."""
    if name in INFO:
        return datasets.load(name, data_root, max_train=max_train, max_test=max_test)
    return subset(own_dataset(name), max_train=max_train, max_test=max_test)


def short_name(name: str) -> str:
    """The name as a part of a file's name."""
    return Path(name.rpartition(":")[2]).stem if is_elsewhere(name) else name


def is_elsewhere(name: str) -> bool:
    """Whether it is a path, or the name of a data set of Hugging Face's."""
    return is_hugging_face(name) or is_path(name)


def own_dataset(name: str) -> Dataset:
    """The user's data set of that name or path, whole.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    if name in REGISTERED:
        return REGISTERED[name]
    if is_hugging_face(name):
        return read_hugging_face(name)
    if is_path(name):
        return read_path(name)
    raise unknown("data set", name, [*NAMES, *REGISTERED])


# Reads .npz files that may be anything: what they claim is checked before it is read.

PACKED_AT_MOST = 1100
"""DEFLATE packs by 1032 at most."""


def read_arrays(path: Path, *choices: tuple[str, ...]) -> list[np.ndarray]:
    """The arrays of a file whose names are one of the choices; nothing is ever unpickled. NumPy
    makes room for what an array's header claims, and fails where there is no more in the file.

    Raises:
        UserError: it cannot be read, claims more than it can hold, or has others than any choice.
    """
    try:
        with zipfile.ZipFile(no_pipe(path)) as file:
            _check_sizes(path, file)
            entries = {e.filename.removesuffix(".npy"): e for e in file.infolist()}
            for names in choices:
                if set(names) == set(entries):
                    return [_read(file, entries[name]) for name in names]
    except UserError:
        raise
    except MemoryError:
        raise UserError(f"cannot read {path}: it needs more memory than there is") from None
    except Exception as error:  # of many kinds, by what is damaged
        raise UserError(f"cannot read {path}: {reason_of(error)}; expected an .npz file") from None
    given = ", ".join(entries)[:100] or "none"
    expected = "; or ".join(", ".join(names) for names in choices)
    raise UserError(f"{path} has the arrays {given}; expected {expected}")


def _check_sizes(path: Path, file: zipfile.ZipFile) -> None:
    """Refuses a file whose list of contents cannot be true, as zip bombs have it."""
    claimed = sum(entry.file_size for entry in file.infolist())
    if claimed > PACKED_AT_MOST * path.stat().st_size + 2**20:
        raise ValueError(f"it claims {claimed} bytes of arrays, more than its size allows")
    if claimed > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise ValueError(f"it claims {claimed} bytes of arrays, more than this machine's memory")


def _read(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with file.open(entry) as array:
        found: np.ndarray = np.lib.format.read_array(array, allow_pickle=False)
    return found


# LEAF's JSON files: a data set for each client.


def _leaf(path: Path) -> Any:
    """The clients of a JSON file as LEAF has it, or of a folder with such files in ``train`` and
    ``test``; their x is numbers."""
    if path.is_file():
        return {user: (own["x"], own["y"]) for user, own in _users(path).items()}
    train, test = _users_in(path / "train"), _users_in(path / "test")
    if train.keys() != test.keys():
        raise UserError(f"{path}: train and test must have the same users (LEAF's split by sample)")
    return {u: ((own["x"], own["y"]), (test[u]["x"], test[u]["y"])) for u, own in train.items()}


def _users_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.json")):
        if twice := found.keys() & (users := _users(file)).keys():
            raise UserError(f"{file}: user {min(twice)} is in another file of {folder.name} too")
        found |= users
    return found


def _users(path: Path) -> dict[str, Any]:
    try:
        users: dict[str, Any] = json.loads(read_text(path))["user_data"]
        if not all({"x", "y"} <= own.keys() for own in users.values()):
            raise KeyError("x and y")
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise UserError(
            f"cannot read {path}: {reason_of(error)}; expected LEAF's user_data, with x and y of "
            "each user"
        ) from None
    return users


# Data of the user's own by path: an .npz file, LEAF's files, or a folder of images by class.

PAIRS = (("images", "labels"), ("x", "y"))
ARRAYS = (
    ("x_train", "y_train", "x_test", "y_test"),
    *PAIRS,
    *((*p, *map(test.format, p)) for p in PAIRS for test in ("test_{}", "{}_test")),
)
"""Names of an .npz file's arrays: with a test split, as Keras has them or beside a pair, or
without."""
LAYOUT = "expected FOLDER/class/image, or FOLDER/train/class/image beside FOLDER/test/class/image"


def is_path(name: str) -> bool:
    """Whether it names a file or folder and not a data set."""
    return not is_hugging_face(name) and ("/" in name or name.endswith((".npz", ".json")))


def read_path(name: str) -> Dataset:
    """The data set at that path; read once for a file that does not change.

    Raises:
        UserError: one line, for whatever is wrong.
    """
    path = Path(name).expanduser()
    if not path.exists():
        raise UserError(f"dataset {name}: there is no such file or folder")
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return _read_path(path, fingerprint(file for file in files if file.exists()))


@lru_cache(maxsize=1)
def _read_path(path: Path, state: str) -> Dataset:
    if path.suffix == ".json" or any((path / "train").glob("*.json")):
        data = _leaf(path)
    else:
        data = _folder(path) if path.is_dir() else _npz(path)
    return replace(as_dataset(str(path), data), name=path.stem)


def _npz(path: Path) -> Any:
    found = read_arrays(path, *ARRAYS)
    if not all(array.ndim for array in found):
        raise UserError(f"{path}: an array is a single number; expected N samples and N labels")
    return (found[:2], found[2:]) if len(found) == 4 else tuple(found)


def _folder(path: Path) -> Any:
    parts = "train", "test"
    if all((path / part).is_dir() for part in parts):
        classes = _classes(path / "train") + _classes(path / "test")
        others = dict.fromkeys(sorted({p.name for p in path.iterdir() if p.is_dir()} - {*parts}))
        return others | {part: ImageFolder(path / part, sorted(set(classes))) for part in parts}
    return ImageFolder(path, _classes(path))


def _classes(folder: Path) -> list[str]:
    found = class_folders(folder)
    if len(found) < 2:
        raise UserError(f"{folder} holds {len(found)} folders with images; {LAYOUT}")
    return found


# Feature-skewed data: a folder per domain, in each a folder per class with its images.
#
# That is DomainNet's layout, ``FOLDER/domain/class/image.png``.

FOLDER = "folder"
"""Name of such a data set in the configuration."""
BY_DOMAIN = "expected FOLDER/domain/class/image"


def find_names(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the domains and of all their classes, each in order; reads no image.

    Raises:
        UserError: there is no such folder, or a domain without a folder of a class.
    """
    try:
        found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}; {BY_DOMAIN}") from None
    domains, classes = [n for n in found if not n.startswith(HIDDEN)], set[str]()
    if not domains:
        raise UserError(f"{folder} holds no folders of domains; {BY_DOMAIN}")
    for domain in domains:
        found = class_folders(folder / domain)
        if not found:
            raise UserError(f"domain {folder / domain} holds no folders with images; {BY_DOMAIN}")
        classes.update(found)
    check_names(f"{folder}: domain", domains)
    return tuple(domains), tuple(sorted(classes))


def load_domains(folder: Path, side: int, seed: int) -> Dataset:
    """Reads every domain, its images as RGB scaled to ``side`` x ``side``, and splits each by the
    seed. A domain may lack classes that another has.

    Raises:
        UserError: the folder is laid out otherwise, holds an image that cannot be read, or a
            domain of one image.
    """
    domains, classes = find_names(folder)
    read = [_scaled(folder / domain, classes, side) for domain in domains]
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
    return Dataset(FOLDER, train, test, len(classes), classes, domains)


def _scaled(folder: Path, classes: Sequence[str], side: int) -> tuple[np.ndarray, np.ndarray]:
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


# Hugging Face data sets by name, from the local cache alone: no run ever downloads.

PREFIX = "hf:"


def is_hugging_face(name: str) -> bool:
    """Whether it is ``hf:NAME`` or ``hf:NAME:CONFIGURATION``."""
    return name.startswith(PREFIX)


@lru_cache(maxsize=1)
def read_hugging_face(name: str) -> Dataset:
    """The data set, of whose splits ``train`` and ``test`` are used.

    Without a ``test`` split a fifth of the training split is held out.

    Raises:
        UserError: one line: the package is missing, or the cache has no such data set.
    """
    if importlib.util.find_spec("datasets") is None:
        raise UserError(f"{name} needs the package datasets: pip install 'onefold[huggingface]'")
    where, _, configuration = name.removeprefix(PREFIX).partition(":")
    from datasets import load_dataset

    try:
        with _offline(), redirect_stderr(StringIO()):  # it prints there what it has found
            found: Any = load_dataset(where, configuration or None)
    except Exception as error:  # of many kinds, for a name or a file that is not there
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{name} is not in Hugging Face's cache: {reason}; to fetch it: "
            f"python -c \"import datasets; datasets.load_dataset('{where}')\""
        ) from None
    if "train" not in found:
        raise UserError(f"{name} has the splits {', '.join(found)}; expected train")
    if "test" in found:
        return as_dataset(where, found)
    if others := ", ".join(part for part in found if part != "train"):
        line = "data %s: it has no split test, so a fifth of train is held out; ignored: %s"
        log.warning(line, where, others)
    return as_dataset(where, found["train"])


@contextmanager
def _offline() -> Iterator[None]:
    """Both libraries read their variable when they are imported, so it is set in both."""
    from datasets import config
    from huggingface_hub import constants

    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
