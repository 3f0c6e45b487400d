"""What the samples of a data set are: their shape, and what their values mean."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from fl.errors import UserError

if TYPE_CHECKING:
    from fl.data.lazy import Lazy

Kind = Literal["pixels", "floats", "integers"]


class NotImages(UserError):
    """The samples are no images, which a method or a model needs."""


@dataclass(frozen=True)
class Inputs:
    """The samples' shape and values, which are known before anything is trained."""

    shape: tuple[int, ...]
    """Of one sample. Images have (channels, height, width)."""
    kind: Kind = "pixels"
    """pixels: floats in [0, 1], of an image. floats: any others. integers: int64, as tokens."""
    low: float = 0.0
    high: float = 1.0
    """The smallest and largest value in the training data."""

    @classmethod
    def of(cls, given: "Inputs | tuple[int, ...]") -> "Inputs":
        """These inputs; a tuple is the shape of an image."""
        return given if isinstance(given, cls) else cls(tuple(given))  # type: ignore[arg-type]

    @classmethod
    def found(cls, samples: "np.ndarray | Lazy") -> "Inputs":
        """What these samples are, (N, ...): uint8 of three axes are images, of 0 to 255."""
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
            raise NotImages(f"the samples are {self}; needed are images of 1 or 3 channels")
        channels, height, width = self.shape
        return channels, height, width

    def __str__(self) -> str:
        return f"{self.kind} of shape {self.shape}"

    def zeros(self, count: int) -> Tensor:
        """So many samples of zeros, as a model takes them; zero is a token of every vocabulary."""
        dtype = torch.int64 if self.kind == "integers" else torch.float32
        return torch.zeros(count, *self.shape, dtype=dtype)

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """So many samples at random, uniform between the smallest and the largest value."""
        size = (count, *self.shape)
        if self.kind == "integers":
            low, high = int(self.low), int(self.high) + 1
            return torch.randint(low, high, size, generator=generator)
        drawn = torch.rand(size, generator=generator)
        return drawn if self.kind == "pixels" else self.low + (self.high - self.low) * drawn

    def stored(self, count: int, stream: np.random.Generator) -> np.ndarray:
        """So many samples at random, as they are stored."""
        size = (count, *self.shape)
        if self.kind == "pixels":
            return stream.integers(0, 256, size, dtype=np.uint8)
        if self.kind == "integers":
            return stream.integers(int(self.low), int(self.high) + 1, size)
        return stream.uniform(self.low, self.high, size).astype(np.float32)


def as_inputs(samples: np.ndarray) -> Tensor:
    """Stored samples as a model takes them: bytes of images as float32 in [0, 1], other floats as
    float32, whole numbers as int64."""
    tensor = torch.from_numpy(samples)
    if tensor.dtype == torch.uint8 and tensor.ndim == 4:
        return tensor.float().div_(255)
    return tensor.float() if tensor.is_floating_point() else tensor.long()
