"""The image data sets, by name, as plain uint8 arrays; one of them unlabelled beside a run's."""

import hashlib
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fl.bounds import Count, OneOf, Settings
from fl.data.files import files_of, read_cinic10, read_torchvision
from fl.data.lazy import Augment, Lazy
from fl.errors import UserError, unknown
from fl.inputs import Inputs
from fl.seeding import numpy_generator
from fl.targets import Targets
from fl.whole_files import cache_dir, no_pipe, replacing

# The `digits` data set: 1,797 handwritten digits of 8x8 pixels, which need no download.
#
# They are the test half of UCI's "Optical Recognition of Handwritten Digits" (E. Alpaydin and
# C. Kaynak, 1998, CC BY 4.0), in scikit-learn's version, stored beside this file: importing
# scikit-learn itself would cost every run more than two seconds.

DIGITS_SIDE = 28

Arrays = dict[str, np.ndarray]
"""``train_images``, ``train_labels``, ``test_images`` and ``test_labels`` of a data set."""


def read_digits() -> Arrays:
    """Images, uint8 (N, 1, 28, 28), and labels, int64 (N,), in a fixed stratified 80/20 split."""
    with (resources.files(__package__) / "digits.npz").open("rb") as file, np.load(file) as raw:
        return {
            key: enlarge(raw[key])[:, None] if "images" in key else raw[key].astype(np.int64)
            for key in raw
        }


def enlarge(images: np.ndarray) -> np.ndarray:
    """Bilinear enlargement from (N, 8, 8), whole values 0..16, to uint8 (N, 28, 28), 0..255.

    Integer arithmetic throughout: half intensity is exactly 127.5, which floats would round
    differently on different machines, and the content key of every shard with it.
    """
    target = np.arange(DIGITS_SIDE)
    # Pixel centres at (target + 1/2) * 8/28 - 1/2, counted in 14ths of a source pixel.
    position = np.clip(4 * target - 5, 0, 14 * 7)
    low, part = np.divmod(position, 14)
    weights = np.zeros((DIGITS_SIDE, 8), dtype=np.int64)
    weights[target, low] += 14 - part
    weights[target, np.minimum(low + 1, 7)] += part
    scaled = weights @ images.astype(np.int64) @ weights.T * 255
    full = 14 * 14 * 16
    return ((scaled + full // 2) // full).astype(np.uint8)


# Data sets as arrays in one file, to be memory-mapped, once torchvision has read them.
#
# Importing torchvision takes a process two seconds and 50 MiB. The file's name contains a hash of
# the paths, sizes and times of the data set's own files, so that no other data is ever taken for
# it.

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

log = logging.getLogger(__name__)


def find_arrays(name: str, root: Path) -> Arrays | None:
    """The arrays that :func:`save` wrote for the data set's files as they are now; else None."""
    path = _path(name, root)
    try:
        with safe_open(no_pipe(path), "pt") as file:
            arrays = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118
            about = file.metadata() or {}
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError):  # an incomplete file, or one that may not be read
        arrays, about = {}, {}
    if about.get(CHECKSUM) != _checksum(arrays):
        log.warning("%s is damaged: it is ignored, and made again", path)
        return None
    return arrays


def save_arrays(name: str, root: Path, arrays: Arrays) -> None:
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
        sha.update(array.data)
    return sha.hexdigest()


def _path(name: str, root: Path) -> Path:
    digest = fingerprint(sorted(root.resolve().glob(SOURCES[name])))[:16]
    return cache_dir() / "data" / f"{name}-{digest}.safetensors"


def fingerprint(files: Iterable[Path]) -> str:
    """A hash of the files' paths, sizes and times, in hexadecimal."""
    stats = ((str(file), file.stat()) for file in files)
    stamps = [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]
    return hashlib.sha256(repr(stamps).encode()).hexdigest()


@dataclass(frozen=True)
class DatasetInfo:
    """Classes and samples of a data set, which are fixed before its files are read."""

    num_classes: int
    inputs: Inputs
    targets: Targets | None = None


INFO = {
    "digits": DatasetInfo(10, Inputs((1, 28, 28))),
    "mnist": DatasetInfo(10, Inputs((1, 28, 28))),
    "fmnist": DatasetInfo(10, Inputs((1, 28, 28))),
    "emnist": DatasetInfo(47, Inputs((1, 28, 28))),
    "svhn": DatasetInfo(10, Inputs((3, 32, 32))),
    "cifar10": DatasetInfo(10, Inputs((3, 32, 32))),
    "cifar100": DatasetInfo(100, Inputs((3, 32, 32))),
    "cinic10": DatasetInfo(10, Inputs((3, 32, 32))),
}
NAMES = tuple(INFO)


@dataclass(frozen=True, eq=False)
class Split:
    """Samples as they are stored, with their labels, int64 (N,), all 0 where they have targets."""

    images: np.ndarray | Lazy
    """(N, ...) of any type: see :func:`fl.inputs.as_inputs`. Images are uint8 (N, C, H, W)."""
    labels: np.ndarray
    domains: np.ndarray | None = None
    """Which domain each image is from, int64 (N,), where the data set has domains."""
    targets: np.ndarray | None = None
    """(N, ...) where there are no classes: see :class:`fl.targets.Targets`."""
    clients: np.ndarray | None = None
    """Whose each sample is, int64 (N,), where the data is divided among clients already."""
    held: np.ndarray | None = None
    """Which of them are for that client's own test, bool (N,); they are in the test split too."""
    augment: Augment | None = None
    """What is done to a sample each time that a classifier trains on it."""
    taken: tuple[np.ndarray, int] | None = None
    """Of a part: which samples of the whole these are, int64 (N,), and how many the whole has."""

    @property
    def rows(self) -> np.ndarray:
        """Which sample of what was given each is, int64 (N,)."""
        return np.arange(len(self.labels)) if self.taken is None else self.taken[0]

    @property
    def num_given(self) -> int:
        """How many samples were given, before some were held out or left out."""
        return len(self.labels) if self.taken is None else self.taken[1]

    def take(self, indices: np.ndarray) -> "Split":
        """The samples at these indices."""
        names = ("domains", "targets", "clients", "held")
        there = {n: column for n in names if (column := getattr(self, n)) is not None}
        further = {name: column[indices] for name, column in there.items()}
        chosen = {"images": self.images[indices], "labels": self.labels[indices]}
        taken = self.rows[indices], self.num_given
        return replace(self, **chosen, **further, taken=taken)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set's train and test split."""

    name: str
    train: Split
    test: Split
    num_classes: int
    class_names: tuple[str, ...] = ()
    """Empty where classes have only numbers."""
    domain_names: tuple[str, ...] = ()

    @cached_property
    def inputs(self) -> Inputs:
        """What the samples are."""
        return Inputs.found(self.train.images)

    @cached_property
    def targets(self) -> Targets | None:
        """What a model is to answer, where that is no class; there is one "class" then."""
        found = [Targets.found(s.targets) for s in (self.train, self.test) if s.targets is not None]
        return replace(found[0], outputs=max(own.outputs for own in found)) if found else None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width; raises :class:`fl.inputs.NotImages` for other samples."""
        return self.inputs.image_shape

    @cached_property
    def leaked(self) -> int:
        """How many test samples are equal to a training sample: what is learned by heart counts as
        learned there."""
        held = self.train.held  # for clients' own tests
        every = enumerate(_digests(self.train))
        known = {digest for k, digest in every if held is None or not held[k]}
        return sum(digest in known for digest in _digests(self.test))


def _digests(split: Split) -> list[bytes]:
    """Of each sample, by which two can be distinguished."""
    if isinstance(split.images, Lazy):
        return [row.tobytes() for row in split.images.digests]
    return [hashlib.sha256(row.tobytes()).digest() for row in split.images]


def load(
    name: str, data_root: Path, *, max_train: int | None = None, max_test: int | None = None
) -> Dataset:
    """Reads data set `name` from `data_root`, in torchvision's folder layout. Never downloads.

    `max_train` and `max_test` take a shuffled subset of a split, the same one in every run; a
    smaller subset is the beginning of a larger one, and one larger than the split is all of it.
    Raises UserError for an unknown name, for files that are missing or damaged, and for an empty
    subset.
    """
    if name not in INFO:
        raise unknown("data set", name, NAMES)
    info, arrays = INFO[name], _read(name, data_root)
    train, test = (Split(arrays[f"{p}_images"], arrays[f"{p}_labels"]) for p in ("train", "test"))
    for split in (train, test):
        if wrong := _wrong(info, split):
            files = [f.name for f, _ in files_of(name, data_root, train=split is train)]
            raise UserError(f"{name}: {wrong}, in {', '.join(files)} of {data_root}")
    whole = Dataset(name, train, test, info.num_classes)
    return subset(whole, max_train=max_train, max_test=max_test)


def subset(dataset: Dataset, *, max_train: int | None, max_test: int | None) -> Dataset:
    """A shuffled subset of each split; see :func:`load`."""
    train = _subset(dataset.name, "max_train", dataset.train, max_train)
    test = _subset(dataset.name, "max_test", dataset.test, max_test)
    return replace(dataset, train=train, test=test)


def _subset(name: str, option: str, split: Split, size: int | None) -> Split:
    if size is None:
        return split
    if size < 1:
        raise UserError(f"{option} {size} for {name}; allowed: 1 and more")
    return split.take(numpy_generator(0, f"{name} {option}").permutation(len(split.labels))[:size])


def _read(name: str, data_root: Path) -> Arrays:
    if name == "digits":
        return read_digits()
    if (kept := find_arrays(name, data_root)) is not None:
        return kept
    read = read_cinic10 if name == "cinic10" else partial(read_torchvision, name)
    found: Arrays = {}
    for split in ("train", "test"):
        images, labels = read(data_root, train=split == "train")
        found |= {f"{split}_images": images, f"{split}_labels": labels}
    save_arrays(name, data_root, found)
    return found


def _wrong(info: DatasetInfo, split: Split) -> str | None:
    """What is wrong with complete files, such as another data set's under this name."""
    images, labels = split.images, split.labels
    if images.shape[1:] != info.inputs.shape:
        return f"images of shape {images.shape[1:]}; allowed: {info.inputs.shape}"
    if len(images) != len(labels):
        return f"{len(images)} images but {len(labels)} labels"
    if labels.min() < 0 or labels.max() >= info.num_classes:
        return f"labels {labels.min()}..{labels.max()}; allowed: 0..{info.num_classes - 1}"
    return None


# Unlabelled images of another data set, for methods that distil on auxiliary data.


CIFAR = {"cifar10", "cinic10"}
"""CINIC-10 has all images of CIFAR-10, some of them in its test split (Darlow et al., 2018)."""


@dataclass(frozen=True, kw_only=True)
class AuxiliaryConfig(Settings):
    """The auxiliary data set."""

    dataset: Annotated[str, OneOf(NAMES)] = "mnist"
    """A data set other than the run's; its labels are not used."""
    max_images: Count | None = None
    """Use a fixed random subset of this many of its training images."""


def load_auxiliary(
    config: AuxiliaryConfig, dataset: str, image_shape: tuple[int, int, int], data_root: Path
) -> Tensor:
    """Its training images, float32 (N, C, H, W) in [0, 1], in the shape of data set ``dataset``.

    Gray images become color by repetition and color ones gray by the mean of the channels; other
    sizes are scaled bilinearly. Never downloads.

    Raises:
        UserError: it has images of the run's data set, or its files are missing or damaged.
    """
    shared = CIFAR if dataset in CIFAR else {dataset}
    if config.dataset in shared:
        others = ", ".join(name for name in NAMES if name not in shared)
        raise UserError(
            f"auxiliary.dataset must be another data set than the run's {dataset}, of other "
            f"images; valid: {others}"
        )
    try:
        split = load(config.dataset, data_root, max_train=config.max_images).train
    except UserError as error:
        raise UserError(f"auxiliary data: {error}") from None
    images = torch.from_numpy(np.asarray(split.images))
    return fit_shape(images.float() / 255, image_shape)


def fit_shape(images: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Images (N, c, h, w) in [0, 1] as (N, C, H, W), where c and C are 1 or 3."""
    channels, *sides = image_shape
    if images.shape[1] > channels:
        images = images.mean(dim=1, keepdim=True)
    if list(images.shape[2:]) != sides:
        images = F.interpolate(images, sides, mode="bilinear", antialias=True).clamp(0, 1)
    return images.expand(-1, channels, -1, -1).contiguous()
