"""Samples that are read when they are needed: a data set object, or an array in a file.

Random transforms of a data set object are drawn anew in every epoch, from the client's own stream.
All samples are read once at the start, to know their form, their labels and what distinguishes them
from others.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fl.data.files import ImageFolder
from fl.errors import UserError, reason_of
from fl.seeding import all_streams, seed_for
from fl.sources import key_of

log = logging.getLogger(__name__)
TRIED = 16
"""Samples of which it is tried whether reading them draws random numbers."""
MEMORY_SHARE = 0.25
"""A data set object of more than this share of main memory is not read into it."""
ROWS = 4096
"""Rows of a file that are read at once."""
DIGEST = 32
"""Bytes of a sample's digest."""


@dataclass(frozen=True)
class Items:
    """A data set object: indexable, with a length."""

    data: Any
    sample: Callable[[Any], tuple[np.ndarray, Any]]
    """Sample and label of what the object gives."""
    labels: Sequence[Any]
    """Those of the first reading, by which samples are trained on."""
    draws: ClassVar[bool] = True
    """Whether reading may draw random numbers."""

    def read(self, rows: np.ndarray) -> np.ndarray:
        """The samples (n, ...) of these rows, as they are stored."""
        found = []
        for row in map(int, rows):
            sample, label = self.sample(self.data[row])
            if not np.array_equal(label, self.labels[row]):
                raise ValueError(f"the data: {_changed(row, self.labels[row], label)}")
            found.append(sample)
        return np.stack(found)


def _changed(row: int, first: Any, other: Any) -> str:
    return (
        f"sample {row} now has the label {other}; it had {first} when it was first read: an index "
        "must always give the same sample"
    )


@dataclass(frozen=True)
class Mapped:
    """An array in a file, which each process maps into its memory."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    draws: ClassVar[bool] = False
    """See :class:`Items`."""

    def read(self, rows: np.ndarray) -> np.ndarray:
        """The samples (n, ...) of these rows, as they are stored."""
        return np.asarray(np.memmap(self.path, self.dtype, "r", self.offset, self.shape)[rows])


@dataclass(frozen=True, eq=False)
class Lazy:
    """Samples (N, ...) that are read when they are needed; an array where it is asked to be one."""

    sources: Sequence[Items | Mapped]
    where: np.ndarray
    """The source and the row in it of each, int64 (N, 2)."""
    digests: np.ndarray
    """Of each sample as it was read first, uint8 (N, 32)."""
    form: np.ndarray
    """The smallest and the largest value of all, as two samples of that: (2, ...)."""

    def __len__(self) -> int:
        return len(self.where)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, ...)."""
        return (len(self), *self.form.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the samples' values."""
        return self.form.dtype

    @property
    def draws(self) -> bool:
        """Whether reading may draw random numbers."""
        return any(source.draws for source in self.sources)

    @property
    def varies(self) -> bool:
        """Whether some samples, tried over all of them, are others when they are read again."""
        if not self.draws or not len(self):
            return False
        rows = np.unique(np.linspace(0, len(self) - 1, TRIED).astype(int))
        first, *others = (self.read(rows, seed) for seed in range(4))
        return not all(np.array_equal(first, other) for other in others)

    def __getitem__(self, rows: Any) -> "Lazy":
        return replace(self, where=self.where[rows], digests=self.digests[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of them in memory, as they were read first."""
        found = np.empty(self.shape, dtype or self.dtype)
        for number, source in enumerate(self.sources):
            places = np.flatnonzero(self.where[:, 0] == number)
            rows = self.where[places, 1]
            if not source.draws:
                found[places] = source.read(rows)
            for place, row in zip(places, rows, strict=True) if source.draws else ():
                with all_streams(seed_for(0, "first reading", int(row))):
                    found[place] = source.read(np.array([row]))[0]
        return found

    def tobytes(self) -> bytes:
        """What distinguishes these samples from others: their digests."""
        return self.digests.tobytes()

    def read(self, rows: np.ndarray, seed: int) -> np.ndarray:
        """The samples of these rows, (n, ...), with what their transforms draw from the seed.

        Raises:
            ValueError: they have another shape than at first, or values that are not finite.
        """
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        sources, own = self.where[rows].T
        with all_streams(seed):
            for source in np.unique(sources):
                chosen = sources == source
                samples = self.sources[source].read(own[chosen])
                if samples.shape[1:] != self.shape[1:]:
                    raise ValueError(
                        f"a sample of the data now has shape {samples.shape[1:]}; it had "
                        f"{self.shape[1:]} when it was first read"
                    )
                found[chosen] = samples
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise ValueError("the data has samples with NaN or infinite values")
        return found

    @staticmethod
    def joined(parts: Sequence["Lazy"]) -> "Lazy":
        """All of these, one after another."""
        starts = np.cumsum([0, *(len(part.sources) for part in parts)])
        moved = [p.where + np.array([start, 0]) for p, start in zip(parts, starts, strict=False)]
        forms = np.stack([part.form for part in parts])
        return Lazy(
            [source for part in parts for source in part.sources],
            np.concatenate(moved),
            np.concatenate([part.digests for part in parts]),
            np.stack([forms[:, 0].min(0), forms[:, 1].max(0)]),
        )


def items_of(data: Any, sample: Callable[[Any], tuple[np.ndarray, Any]]) -> tuple[Lazy, list[Any]]:
    """A data set object's samples, which are not kept, and its labels, which are.

    Raises:
        UserError: samples of several shapes or types, or values that are not finite.
    """
    labels: list[Any] = []

    def read() -> Iterator[np.ndarray]:
        for row in range(len(data)):
            with all_streams(seed_for(0, "first reading", row)):
                found, label = sample(data[row])
            labels.append(label)
            yield found[None]

    return _first_reading(Items(data, sample, labels), read(), naming(data)), labels


def numbered(row: int) -> str:
    """The name of a sample that has none."""
    return f"sample {row}"


def naming(data: Any) -> Callable[[int], str]:
    """What names a sample of a data set object in a refusal: its file, in a folder of images."""
    return data.named if isinstance(data, ImageFolder) else numbered


def mapped(array: np.memmap[Any, Any]) -> Lazy | None:
    """An array in a file, to be read by rows. None where it has to be read whole: a part of a file,
    another order than C's, changes that are not in the file; images whose channels come last or
    have no axis, floats of another size than 32 bits, bool."""
    part, file = isinstance(array.base, np.memmap), array.filename
    if part or file is None or not array.flags.c_contiguous or array.mode == "c":
        return None
    plain = array.dtype.kind in "iu" or array.dtype == np.float32
    gray = array.ndim == 3 and array.dtype == np.uint8
    channels_last = array.ndim == 4 and array.shape[1] not in (1, 3)
    if not plain or array.ndim < 2 or gray or channels_last:
        return None
    source = Mapped(Path(file), array.dtype, array.shape, array.offset)
    return _first_reading(source, (array[k : k + ROWS] for k in range(0, len(array), ROWS)))


def _first_reading(
    source: Items | Mapped, parts: Iterable[np.ndarray], named: Callable[[int], str] = numbered
) -> Lazy:
    """Reads all once; ``parts`` are the samples in order, some at a time."""
    digests: list[bytes] = []
    low = high = None
    for part in parts:
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise UserError("samples have NaN or infinite values")
        if low is not None and (part.shape[1:], part.dtype) != (low.shape, low.dtype):
            raise UserError(
                f"samples need one shape and type, got {low.dtype} {low.shape} in {named(0)} and "
                f"{part.dtype} {part.shape[1:]} in {named(len(digests))}; scale or pad them"
            )
        digests += [hashlib.sha256(own.tobytes()).digest() for own in part]
        least, most = part.min(0), part.max(0)
        low = least if low is None else np.minimum(low, least)
        high = most if high is None else np.maximum(high, most)
    if low is None or high is None:
        raise UserError("it has no samples")
    where = np.stack([np.zeros(len(digests), np.int64), np.arange(len(digests))], 1)
    flat = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST)
    return Lazy([source], where, flat, np.stack([low, high]))


def is_lazy(name: str, data: Any, sample: Callable[[Any], tuple[np.ndarray, Any]]) -> bool:
    """Whether a data set object is to be read when needed: reading it draws random numbers, or it
    is too large for main memory.

    Raises:
        UserError: a sample's label is another one when it is read again.
    """
    count = min(len(data), TRIED)
    if not count:
        return False
    size = sample(data[0])[0].nbytes * len(data)
    if size > MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        return True
    draws, repeats = False, True
    for row in range(count):
        with all_streams(2 * row):
            one, label = sample(data[row])
        with all_streams(2 * row + 1):
            other, again = sample(data[row])
        with all_streams(2 * row):
            repeated, _ = sample(data[row])
        repeats = repeats and np.array_equal(one, repeated)
        if not np.array_equal(label, again):
            raise UserError(_changed(row, label, again))
        draws = draws or not np.array_equal(one, other)
    if not repeats:
        log.warning(
            "data %s: reading a sample twice with the same seed gives different values, so no run "
            "can be repeated: draw only from torch's, numpy's or Python's global generator",
            name,
        )
    return draws or not repeats


# A transform of the user's for training samples, as they are given to a model.


@dataclass(frozen=True, eq=False)
class Augment:
    """Calls the user's function of one sample, (...), each time that it is trained on."""

    function: Callable[[Tensor], Tensor]
    digest: str = field(default="", repr=False)
    """Of what it is and does."""

    @classmethod
    def of(cls, function: Callable[[Tensor], Tensor], samples: Tensor) -> "Augment":
        """``samples``: a few (n, ...), on which it is tried.

        Raises:
            UserError: it fails, or gives another shape or type.
        """
        if not callable(function):
            raise UserError(f"augment: expected a function, got {type(function).__name__}")
        digest = hashlib.sha256(key_of([function], "uploads").encode())
        made = cls(function)
        for seed in range(3):
            try:
                found, again = made(samples, seed), made(samples, seed)
            except (Exception, SystemExit) as error:
                raise UserError(
                    f"augment fails on a sample of shape {tuple(samples.shape[1:])}: "
                    f"{type(error).__name__}: {reason_of(error)}"
                ) from None
            if not torch.equal(found, again):
                raise UserError(
                    "augment has its own random generator, which the run's seed does not set: "
                    "draw from torch's, NumPy's or Python's global generator"
                )
            digest.update(found.contiguous().numpy().tobytes())
        return cls(function, digest.hexdigest())

    def __call__(self, samples: Tensor, seed: int) -> Tensor:
        """Of each sample (n, ...), with what it draws from the seed."""
        if not len(samples):
            return samples
        with all_streams(seed), torch.no_grad():
            found = torch.stack([self.function(sample) for sample in samples])
        if (found.shape, found.dtype) != (samples.shape, samples.dtype):
            raise ValueError(
                f"augment must keep type and shape, got {found.dtype} {tuple(found.shape[1:])} "
                f"for a sample of {samples.dtype} {tuple(samples.shape[1:])}"
            )
        return found
