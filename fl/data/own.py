"""Data of the user's own: arrays and data set objects, as the plain arrays that runs use.

What is stored of it is exact, but that floats become float32, as which models take them.
"""

import importlib.util
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from fl.data.datasets import Dataset, Split, fingerprint
from fl.data.image_files import ImageFolder, check_names, class_folders, in_one_form, pixels
from fl.errors import UserError, reason_of
from fl.seeding import numpy_generator
from fl.whole_files import no_pipe, read_text

# Reads .npz files that may be anything: what they claim is checked before it is read.

PACKED_AT_MOST = 1100
"""DEFLATE packs by 1032 at most."""


def read_arrays(path: Path, *choices: tuple[str, ...]) -> list[np.ndarray]:
    """The arrays of the first choice of names that the file has; nothing is ever unpickled.

    Raises:
        UserError: it cannot be read, claims more than it can hold, or has none of the choices.
    """
    try:
        with zipfile.ZipFile(no_pipe(path)) as file:
            _check_sizes(path, file)
            entries = {e.filename.removesuffix(".npy"): e for e in file.infolist()}
            for names in choices:
                if set(names) <= set(entries):
                    return [_read(file, name, entries[name]) for name in names]
    except UserError:
        raise
    except MemoryError:
        raise UserError(f"cannot read {path}: it needs more memory than there is") from None
    except Exception as error:  # of many kinds, by what is damaged
        raise UserError(f"cannot read {path}: {reason_of(error)}; expected an .npz file") from None
    given = ", ".join(entries)[:100] or "none"
    expected = "; or ".join(", ".join(names) for names in choices)
    raise UserError(f"{path} has the arrays {given}; expected {expected}")


def is_whole(array: np.ndarray) -> bool:
    """Whether these are whole numbers that int64 holds. Spans of time, for which NumPy counts as
    integers, are none."""
    fits = array.dtype != np.uint64 or not array.size or array.max() < 2**63
    return array.dtype.kind in "iu" and bool(fits)


def _check_sizes(path: Path, file: zipfile.ZipFile) -> None:
    """Refuses a file whose list of contents cannot be true, as zip bombs have it."""
    claimed = sum(entry.file_size for entry in file.infolist())
    if claimed > PACKED_AT_MOST * path.stat().st_size + 2**20:
        raise ValueError(f"it claims {claimed} bytes of arrays, which it cannot hold")
    if claimed > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise ValueError(f"it claims {claimed} bytes of arrays, more than this machine's memory")


def _read(file: zipfile.ZipFile, name: str, entry: zipfile.ZipInfo) -> np.ndarray:
    """The array, once its header is checked: NumPy makes room for what a header claims."""
    with file.open(entry) as head:
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            np.lib.format.read_magic(head), np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(head)
    size = int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize
    if not dtype.hasobject and not 0 <= size <= entry.file_size:
        raise ValueError(f"{name} claims shape {shape}, which is more than there is")
    with file.open(entry) as whole:
        found: np.ndarray = np.lib.format.read_array(whole, allow_pickle=False)
    return found


TEST_SHARE = 0.2
"""Share of the samples that is held out where no test split is given."""
FORMS = (
    "(samples, labels), ((samples, labels), (test samples, test labels)), a mapping with train and "
    "test, a mapping of clients, or a data set object"
)
FEW_CLASSES = 1000
"""More are allowed where there are as many samples, since labels count the classes from 0."""
IMAGE_COLUMNS = ("image", "img", "x")
LABEL_COLUMNS = ("label", "labels", "fine_label", "y")


def as_dataset(name: str, data: Any) -> Dataset:
    """The user's data as a data set.

    Args:
        name: what it is called.
        data: a `Dataset`; a pair of arrays, samples and labels, of which a fifth is held out as the
            test split; two such pairs, training and test; a mapping with ``train`` and ``test``,
            of pairs or data set objects (a Hugging Face ``DatasetDict`` is one); a mapping of
            clients, each with data in any of these forms, see :func:`of_clients`; or one data set
            object, indexable with a length, whose samples are (sample, label). Samples are
            numbers of any type and one shape; see :func:`stored` for what is taken as an image.
            Labels are integers from 0.

    Raises:
        UserError: one line, for whatever is wrong.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, tuple | list) and len(data) == 2 and _is_pair(data[0]):
        data = {"train": data[0], "test": data[1]}
    if not isinstance(data, Mapping):
        return _checked(name, *_held_out(_split(name, data)), _class_names(data))
    missing = {"train", "test"} - data.keys()
    if len(missing) == 2 and data:
        return of_clients(name, data)
    if missing:
        raise UserError(f"data {name}: no {' and no '.join(sorted(missing))} in the mapping")
    train, test = (_split(f"{name} {part}", data[part]) for part in ("train", "test"))
    return _checked(name, train, test, _class_names(data["train"]))


def _is_pair(data: Any) -> bool:
    """Whether it is images and labels, and not a sample, or two of them."""
    if not isinstance(data, tuple | list) or len(data) != 2 or isinstance(data[1], tuple):
        return False
    try:
        return np.ndim(data[1]) > 0
    except ValueError:  # of several lengths
        return False


def _held_out(whole: Split) -> tuple[Split, Split]:
    order = numpy_generator(0, "own test").permutation(len(whole.labels))
    count = max(1, round(TEST_SHARE * len(order)))
    return whole.take(np.sort(order[count:])), whole.take(np.sort(order[:count]))


def _split(name: str, data: Any) -> Split:
    if _is_pair(data):
        images, labels = (_array(name, column) for column in data)
        if len(images) != len(labels):
            raise UserError(f"data {name}: {len(images)} samples but {len(labels)} labels")
        return Split(stored(name, images), _labels(name, labels))
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise UserError(f"data {name}: expected {FORMS}, got {type(data).__name__}")
    samples = [_sample(name, data[index]) for index in range(len(data))]
    if not samples:
        raise UserError(f"data {name} has no samples")
    alike = in_one_form([image for image, _ in samples])
    shapes = {np.shape(image) for image in alike}
    if len(shapes) > 1:
        raise UserError(
            f"data {name}: samples of several shapes, {sorted(shapes)[:3]}; scale or pad them"
        )
    return Split(
        stored(name, np.stack(alike)),
        _labels(name, _array(name, [label for _, label in samples])),
    )


def _sample(name: str, sample: Any) -> tuple[np.ndarray, Any]:
    """Image and label of a data set object's sample: a pair, or a mapping of columns."""
    if isinstance(sample, Mapping):
        image, label = _column(sample, IMAGE_COLUMNS), _column(sample, LABEL_COLUMNS)
        if image is None or label is None:
            raise UserError(
                f"data {name} has columns {', '.join(sample)}; expected "
                f"{' or '.join(IMAGE_COLUMNS)}, and {' or '.join(LABEL_COLUMNS)}"
            )
        sample = (sample[image], sample[label])
    if not isinstance(sample, Sequence) or len(sample) != 2:
        kind = type(sample).__name__
        raise UserError(f"data {name}: a sample must be (sample, label), got a {kind}")
    return _array(name, sample[0]), sample[1]


def _array(name: str, image: Any) -> np.ndarray:
    """An image or a column as an array; Pillow's images by what their pixels mean."""
    if hasattr(image, "getbands"):
        return pixels(image, f"of data {name}")
    try:
        return np.asarray(image)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged, or a tensor of another kind
        raise UserError(f"data {name}: no array: {reason_of(error)}") from None


def _column(sample: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in sample), None)


def stored(name: str, samples: np.ndarray) -> np.ndarray:
    """Samples, (N, ...), as they are stored: integers in their own type, floats as float32.

    Images, uint8 or floats in [0, 1], are (N, C, H, W) or (N, H, W, C) with 1 or 3 channels, and
    become uint8 (N, C, H, W) where they have 256 levels exactly. Of three axes, (N, H, W), they are
    gray images only with such levels: other floats are sequences.

    Raises:
        UserError: they are no numbers, not finite, or without a shape.
    """
    if samples.dtype.kind not in "biuf" or samples.ndim < 2:
        raise UserError(
            f"data {name}: samples of type {samples.dtype} and shape {samples.shape}; expected "
            "numbers, (N, ...) with at least one axis for each sample"
        )
    if samples.dtype.kind == "f":
        if not np.isfinite(samples).all():
            raise UserError(f"data {name}: samples with NaN or infinite values")
        samples = _in_bytes(samples)
    if samples.dtype.kind == "f" or samples.dtype == np.uint8:
        samples = _channels_first(samples)
    elif not is_whole(samples := samples.astype(np.uint8) if samples.dtype == bool else samples):
        raise UserError(f"data {name}: integers of 2**63 and more; allowed: less")
    kept = np.float32 if samples.dtype.kind == "f" else samples.dtype
    return np.ascontiguousarray(samples, dtype=kept)


def _in_bytes(samples: np.ndarray) -> np.ndarray:
    """Images of floats as uint8, where each value is exactly one of n / 255; else as they are."""
    if samples.ndim not in (3, 4) or not samples.size or samples.min() < 0 or samples.max() > 1:
        return samples
    levels = np.round(samples * 255)
    exact = np.allclose(levels / 255, samples, rtol=0, atol=np.finfo(samples.dtype).eps)
    return levels.astype(np.uint8) if exact else samples


def _channels_first(samples: np.ndarray) -> np.ndarray:
    """Images as (N, C, H, W); all else as it is."""
    if samples.ndim == 3 and samples.dtype == np.uint8:
        return samples[:, None]
    if samples.ndim == 4 and samples.shape[1] not in (1, 3) and samples.shape[3] in (1, 3):
        return samples.transpose(0, 3, 1, 2)
    return samples


def _labels(name: str, labels: np.ndarray) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not is_whole(labels):
        raise UserError(
            f"data {name}: labels of type {labels.dtype} and shape {labels.shape}; expected "
            "integers below 2**63, one for each sample"
        )
    return labels.astype(np.int64)


def _class_names(data: Any) -> tuple[str, ...]:
    """What the data set object calls its classes, as torchvision and Hugging Face do."""
    if isinstance(names := getattr(data, "classes", None), list | tuple):
        return tuple(map(str, names))
    features = getattr(data, "features", None)
    label = _column(features, LABEL_COLUMNS) if isinstance(features, Mapping) else None
    if features is None or label is None:
        return ()
    return tuple(getattr(features[label], "names", None) or ())


def _checked(name: str, train: Split, test: Split, names: tuple[str, ...]) -> Dataset:
    for part, split in (("training", train), ("test", test)):
        if not len(split.labels):
            raise UserError(f"data {name} has no {part} samples")
        if split.labels.min() < 0:
            raise UserError(f"data {name}: label {split.labels.min()}; allowed: 0 and more")
    if train.images.shape[1:] != test.images.shape[1:]:
        shapes = f"{train.images.shape[1:]} and {test.images.shape[1:]}"
        raise UserError(f"data {name}: training and test samples differ in shape: {shapes}")
    check_names(f"data {name}: class", names)
    classes = max(len(names), 1 + int(max(train.labels.max(), test.labels.max())))
    samples = len(train.labels) + len(test.labels)
    if classes > max(FEW_CLASSES, samples):
        raise UserError(
            f"data {name}: label {classes - 1} with {samples} samples; allowed: 0 to "
            f"{max(FEW_CLASSES, samples) - 1}, as labels count the classes"
        )
    named = names if len(names) == classes else ()
    return Dataset(name, train, test, classes, class_names=named)


# Data that is divided among clients already: a data set for each, or LEAF's files.


def of_clients(name: str, data: Mapping[Any, Any]) -> Dataset:
    """One data set of the clients' own ones, for ``partition.kind natural``.

    Clients are numbered from 0 in the mapping's order. The training split holds all samples; those
    that are for a client's own test are marked as held. Together they are the test split.

    Raises:
        UserError: one line, for whatever is wrong, with the client's name.
    """
    parts = [as_dataset(f"{name} of client {client}", own) for client, own in data.items()]
    forms = {(p.train.images.shape[1:], p.train.images.dtype.str) for p in parts}
    if len(forms) > 1:
        raise UserError(
            f"data {name}: clients' samples of several shapes or types, {sorted(forms)[:3]}"
        )
    splits = [split for p in parts for split in (p.train, p.test)]
    sizes = [len(split.labels) for split in splits]
    held = np.repeat(np.tile([False, True], len(parts)), sizes)
    train = Split(
        images=np.concatenate([split.images for split in splits]),
        labels=np.concatenate([split.labels for split in splits]),
        clients=np.repeat(np.repeat(np.arange(len(parts)), 2), sizes),
        held=held,
    )
    test = train.take(np.flatnonzero(held))
    names = {p.class_names for p in parts}
    if len(names) > 1:
        raise UserError(f"data {name}: clients' classes have several names, {sorted(names)[:2]}")
    return _checked(name, train, test, names.pop())


def _leaf(path: Path) -> Any:
    """The clients of a JSON file as LEAF has it, or of a folder with such files in ``train`` and
    ``test``; their x is numbers."""
    if path.is_file():
        return {user: (own["x"], own["y"]) for user, own in _users(path).items()}
    train, test = (
        {u: own for f in sorted((path / p).glob("*.json")) for u, own in _users(f).items()}
        for p in ("train", "test")
    )
    if train.keys() != test.keys():
        raise UserError(f"{path}: train and test have other users; LEAF's are split by sample")
    return {u: ((own["x"], own["y"]), (test[u]["x"], test[u]["y"])) for u, own in train.items()}


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

ARRAYS = (("x_train", "y_train", "x_test", "y_test"), ("images", "labels"), ("x", "y"))
"""Names of an .npz file's arrays: with a test split as Keras has them, or without."""
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
        raise UserError(f"{path} has one number for an array; expected N samples and N labels")
    return (found[:2], found[2:]) if len(found) == 4 else tuple(found)


def _folder(path: Path) -> Any:
    if (path / "train").is_dir() and (path / "test").is_dir():
        classes = _classes(path / "train") + _classes(path / "test")
        return {part: ImageFolder(path / part, sorted(set(classes))) for part in ("train", "test")}
    return ImageFolder(path, _classes(path))


def _classes(folder: Path) -> list[str]:
    found = class_folders(folder)
    if len(found) < 2:
        raise UserError(f"{folder} holds {len(found)} folders with images; {LAYOUT}")
    return found


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
        with _offline(), redirect_stderr(StringIO()):  # it tells there what it has found
            found: Any = load_dataset(where, configuration or None)
    except Exception as error:  # of many kinds, for a name or a file that is not there
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{name} is not in Hugging Face's cache: {reason}; to fetch it: "
            f"python -c \"import datasets; datasets.load_dataset('{where}')\""
        ) from None
    if "train" not in found:
        raise UserError(f"{name} has the splits {', '.join(found)}; expected train")
    data = {"train": found["train"], "test": found["test"]} if "test" in found else found["train"]
    return as_dataset(where, data)


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
