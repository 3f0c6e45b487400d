"""What the samples of a data set are: their shape, and what their values mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fl.errors import UserError

Kind = Literal["pixels", "floats", "integers", "parts"]


class NotImages(UserError):
    """The samples are no images, which a method or a model needs."""


@dataclass(frozen=True)
class Inputs:
    """The samples' shape and values, which are known before anything is trained."""

    shape: tuple[int, ...]
    """Of one sample. Images have (channels, height, width)."""
    kind: Kind = "pixels"
    """pixels: floats in [0, 1], of an image. floats: any others. integers: int64, as tokens. parts:
    several of these, as the bytes of all; a model gets them one by one."""
    low: float = 0.0
    high: float = 1.0
    """The smallest and largest value in the training data."""
    parts: tuple["Inputs", ...] = ()

    @classmethod
    def of(cls, given: "Inputs | tuple[int, ...]") -> "Inputs":
        """These inputs; a tuple is the shape of an image."""
        return given if isinstance(given, cls) else cls(tuple(given))  # type: ignore[arg-type]

    @classmethod
    def found(cls, samples: Any) -> "Inputs":
        """What these samples are, an array (N, ...) or :class:`fl.data.lazy.Lazy`: uint8 of three
        axes are images, of 0 to 255."""
        if samples.dtype.names and isinstance(samples, np.ndarray):
            parts = tuple(cls.found(samples[name]) for name in samples.dtype.names)
            return cls((samples.dtype.itemsize,), "parts", parts=parts)
        shape = samples.shape[1:]
        if samples.dtype == np.uint8 and len(shape) == 3:
            return cls(shape)
        values = samples if isinstance(samples, np.ndarray) else samples.form
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
        if samples.dtype.kind != "f":
            return cls(shape, "integers", low, high)
        is_image = len(shape) == 3 and shape[0] in (1, 3) and 0 <= low <= high <= 1
        return cls(shape) if is_image else cls(shape, "floats", low, high)

    @property
    def is_image(self) -> bool:
        """Whether they are images of one or three channels."""
        return self.kind == "pixels" and len(self.shape) == 3 and self.shape[0] in (1, 3)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width.

        Raises:
            NotImages: the samples are no images.
        """
        if not self.is_image:
            needed = "needed are images of 1 or 3 channels"
            raise NotImages(f"the samples are {self}; {needed}{self.hint}")
        channels, height, width = self.shape
        return channels, height, width

    @property
    def shape_for_model(self) -> tuple[Any, ...]:
        """What a model is built for: the shape, or that of each part."""
        return tuple(part.shape for part in self.parts) or self.shape

    def __str__(self) -> str:
        if self.parts:
            return " and ".join(map(str, self.parts))
        if self.kind == "pixels":
            return f"images of shape {self.shape}"
        return f"{self.kind} of shape {self.shape} from {self.low:g} to {self.high:g}"

    @property
    def hint(self) -> str:
        """What samples must be to be images, where these might be meant as such."""
        near = self.kind in ("floats", "integers") and len(self.shape) in (2, 3)
        images = "; images are (N, C, H, W) or (N, H, W, C), of uint8 or floats from 0 to 1"
        return images if near else ""

    def example(self, count: int) -> Tensor:
        """So many samples, always the same. None is of zeros alone: where these are padding, there
        is nothing in it, and many a model answers it with NaN or fails."""
        return self.draw(count, torch.Generator().manual_seed(0))

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """So many samples at random, uniform between the smallest and the largest value."""
        if self.parts:
            return joined([part.draw(count, generator) for part in self.parts])
        size = (count, *self.shape)
        if self.kind == "integers":
            low, high = int(self.low), int(self.high) + 1
            return torch.randint(low, high, size, generator=generator)
        drawn = torch.rand(size, generator=generator)
        return drawn if self.kind == "pixels" else self.low + (self.high - self.low) * drawn

    def stored(self, count: int, stream: np.random.Generator) -> np.ndarray:
        """So many samples at random, as they are stored."""
        if self.parts:
            return together([part.stored(count, stream) for part in self.parts])
        size = (count, *self.shape)
        if self.kind == "pixels":
            return stream.integers(0, 256, size, dtype=np.uint8)
        if self.kind == "integers":
            return stream.integers(int(self.low), int(self.high) + 1, size)
        return stream.uniform(self.low, self.high, size).astype(np.float32)

    def one_by_one(self, samples: Tensor) -> tuple[Tensor, ...]:
        """The parts (B, ...) of samples (B, bytes)."""
        found, first = [], 0
        for part in self.parts:
            empty = part.example(0)
            size = math.prod(part.shape) * empty.element_size()
            own = samples[:, first : first + size]
            own = own.clone(memory_format=torch.contiguous_format)  # of a type, it begins aligned
            found.append(own.view(empty.dtype).view(len(samples), *part.shape))
            first += size
        return tuple(found)


def take_parts(inputs: Inputs, module: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """A model's forward pre-hook: the parts one by one of a single tensor of their bytes."""
    whole = len(given) == 1 and given[0].dtype == torch.uint8 and given[0].ndim == 2
    return inputs.one_by_one(given[0]) if whole else given


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Parts (B, ...) as their bytes, (B, bytes)."""
    return torch.cat([p.contiguous().flatten(1).view(torch.uint8) for p in parts], 1)


def together(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays (N, ...) as one of records, (N,), as a model takes them."""
    tensors = [as_inputs(part).numpy() for part in parts]
    fields = [(f"part{k}", t.dtype, t.shape[1:]) for k, t in enumerate(tensors)]
    records = np.empty(len(tensors[0]), fields)
    for (name, *_), tensor in zip(fields, tensors, strict=True):
        records[name] = tensor
    return records


def as_inputs(samples: np.ndarray) -> Tensor:
    """Stored samples as a model takes them: bytes of images as float32 in [0, 1], other floats as
    float32, whole numbers as int64; records as their bytes, uint8 (N, bytes)."""
    if samples.dtype.names:
        flat = np.ascontiguousarray(samples).view(np.uint8)
        return torch.from_numpy(flat.reshape(len(samples), samples.dtype.itemsize))
    tensor = torch.from_numpy(samples)
    if tensor.dtype == torch.uint8 and tensor.ndim == 4:
        return tensor.float().div_(255)
    return tensor.float() if tensor.is_floating_point() else tensor.long()


def in_bytes(samples: np.ndarray) -> np.ndarray:
    """Images of floats as uint8, where each value is exactly one of n / 255; else as they are."""
    if samples.ndim not in (3, 4) or not samples.size or samples.min() < 0 or samples.max() > 1:
        return samples
    if samples.ndim == 3 and np.isin(samples, (0, 1)).all():  # rows of ones and zeros
        return samples
    levels = np.round(samples * 255)
    exact = np.allclose(levels / 255, samples, rtol=0, atol=np.finfo(samples.dtype).eps)
    return levels.astype(np.uint8) if exact else samples


def channels_first(samples: np.ndarray) -> np.ndarray:
    """Images as (N, C, H, W); all else, also floats outside [0, 1], as it is."""
    if samples.dtype.kind == "f" and samples.size and not 0 <= samples.min() <= samples.max() <= 1:
        return samples
    if samples.dtype.kind != "f" and samples.dtype != np.uint8:
        return samples
    if samples.ndim == 3 and samples.dtype == np.uint8:
        return samples[:, None]
    if samples.ndim == 4 and samples.shape[1] not in (1, 3) and samples.shape[3] in (1, 3):
        return samples.transpose(0, 3, 1, 2)
    return samples


def is_whole(array: np.ndarray) -> bool:
    """Whether these are whole numbers that int64 holds. Spans of time, for which NumPy counts as
    integers, are none."""
    fits = array.dtype != np.uint64 or not array.size or array.max() < 2**63
    return array.dtype.kind in "iu" and bool(fits)


FAR = 10
"""Widths of one range that another is away from it, or larger or smaller, and no longer alike."""
SEEN = 1000
"""Rows by which a table's columns are compared."""
FEWEST = 20
"""And the fewest by which they can be."""


def unlike_columns(one: Any, other: Any) -> str | None:
    """How a column of one table of floats, (N, D), differs from that of another so far that only
    one of them can have been normalised: by the middle halves of their values. Of several inputs
    any may be such a table. None if none does; of small ones or random ones it is not asked."""
    for name in one.dtype.names or ():
        if found := unlike_columns(one[name], other[name]):
            return found
    tables = all(own.dtype.kind == "f" and len(own.shape) == 2 for own in (one, other))
    read = not any(getattr(own, "draws", False) for own in (one, other))
    if not (tables and read) or min(len(one), len(other)) < FEWEST:
        return None
    rows = (np.unique(np.linspace(0, len(own) - 1, SEEN).astype(int)) for own in (one, other))
    seen = (np.asarray(own[at], np.float64) for own, at in zip((one, other), rows, strict=True))
    (a, b), (c, d) = (np.quantile(own, (0.25, 0.75), axis=0) for own in seen)
    width, others = b - a, d - c
    beyond = np.maximum(a - d, c - b) > FAR * width
    scaled = (others > FAR * width) | (width > FAR * others)
    columns = np.flatnonzero((beyond | scaled) & (width > 0) & (others > 0))
    if not len(columns):
        return None
    k = columns[0]
    return f"column {k}, of {a[k]:.4g} to {b[k]:.4g} against {c[k]:.4g} to {d[k]:.4g}"
